"""all_reduce on torch's symmetric memory between two ranks on one GPU, timed as a user would write
it.

`python symmetric_by_hand.py [CALLS]` prints one JSON object a line. An algorithm that the GPU lacks
is a line with the error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from by_hand import BATCH, batch_of, by_events, by_host, report

cuda: Any = torch.cuda
dist: Any = torch.distributed
processes: Any = torch.multiprocessing
RANKS = 2
CALLS = 200
SIZES = (8, 1 << 16, 1 << 20)
BYTES = 2  # of a bfloat16


def calls(size: int, group: str, place: Any) -> dict[str, Callable[[], Any]]:
    """By algorithm; all in place. Zeros stay zeros."""
    symmetric: Any = import_module("torch.distributed._symmetric_memory")
    shared = symmetric.empty(size // BYTES, dtype=torch.bfloat16, device=place).zero_()
    symmetric.rendezvous(shared, group)
    own = torch.zeros_like(shared)
    ops: Any = torch.ops.symm_mem
    return {
        "one_shot": partial(ops.one_shot_all_reduce_copy_out, shared, own, "sum", group, own),
        "two_shot": partial(ops.two_shot_all_reduce_, shared, "sum", group),
        "multimem": partial(ops.multimem_all_reduce_, shared, "sum", group),
    }


def timed(call: Callable[[], Any], n: int) -> dict[str, list[float]]:
    """Seconds of a call, by way; as many on all ranks, because each waits for the others."""
    many = partial(batch_of, call)
    many()
    cuda.synchronize()
    one_by_one = [by_host(call) for _ in range(n)]
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, capture_error_mode="thread_local"):
        many()
    replays = [by_events(graph.replay, BATCH, True) for _ in range(n // BATCH)]
    return {"host_sync": one_by_one, "graph": replays}


def measure(rank: int, n: int, store: str) -> None:
    place = torch.device("cuda", 0)
    cuda.set_device(place)
    meeting = dist.FileStore(store, RANKS)
    dist.init_process_group("nccl", store=meeting, rank=rank, world_size=RANKS, device_id=place)
    for size in SIZES:
        for algorithm, call in calls(size, dist.group.WORLD.group_name, place).items():
            what = f"all_reduce {algorithm}"
            try:
                times = timed(call, n)
            except Exception as error:
                row = {"what": what, "bytes": size, "error": " ".join(str(error).split())[:300]}
                print(json.dumps(row), flush=True)
                continue
            for mode, seconds in times.items() if rank == 0 else ():
                report(what, mode, size, seconds)
    sys.stdout.flush()
    os._exit(0)  # what has failed may wait for ever in its end


if __name__ == "__main__":
    n = int(sys.argv[1]) if sys.argv[1:] else CALLS
    processes.spawn(measure, (n, str(Path("store").resolve())), nprocs=RANKS)
