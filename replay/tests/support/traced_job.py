"""A real job of two ranks on gloo, recorded by torch's profiler and Flight Recorder.

`python traced_job.py KIND FOLDER` starts one rank for each of two processes; KIND is ddp,
fsdp or batched (the calls of `batched_step`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

RANKS = 2
STEPS = 2
HIDDEN = 64


def run_rank(rank: int, kind: str, folder: str) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile

    store = dist.FileStore(str(Path(folder) / "store"), RANKS)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (RANKS,))
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def step() -> None:
        if kind == "batched":
            batched_step()
        else:
            train(model)

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(STEPS):
            step()
            recorded.step()
    recorded.export_chrome_trace(str(Path(folder) / f"profile-rank{rank}.json"))
    dump = torch._C._distributed_c10d._dump_fr_trace_json()
    (Path(folder) / f"fr_trace_rank_{rank}").write_bytes(dump)
    dist.destroy_process_group()


def batched_step() -> None:
    """Two messages each way at once, and collectives on two tensors each."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    peer = 1 - dist.get_rank()
    sent = [torch.ones(10), torch.ones(3, dtype=torch.int64)]
    received = [torch.empty(10), torch.empty(3, dtype=torch.int64)]
    messages = [
        *(dist.P2POp(dist.isend, values, peer) for values in sent),
        *(dist.P2POp(dist.irecv, values, peer) for values in received),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    dist.all_gather_coalesced(
        [[torch.empty(4), torch.empty(6)] for _ in range(RANKS)], [torch.ones(4), torch.ones(6)]
    )
    dist.all_reduce_coalesced([torch.ones(5), torch.ones(7)])
    with _coalescing_manager():
        for count in (8, 9):
            dist.all_reduce(torch.ones(count))
    with _coalescing_manager():
        for count in (2, 3):
            dist.all_gather_into_tensor(torch.empty(count * RANKS), torch.ones(count))
    with _coalescing_manager():
        for count in (4, 5):
            dist.reduce_scatter_tensor(torch.empty(count), torch.ones(count * RANKS))


def train(model: object) -> None:
    import torch

    model(torch.ones(4, HIDDEN)).sum().backward()  # type: ignore[operator]


def main() -> None:
    import torch.multiprocessing as mp

    mp.spawn(run_rank, args=tuple(sys.argv[1:3]), nprocs=RANKS)


if __name__ == "__main__":
    main()
