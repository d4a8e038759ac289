"""`torchrun --nproc-per-node 2 training.py ddp|fully_shard FOLDER [cpu]`: a small training job of
ranks that share a GPU, recorded in FOLDER by torch's profiler, Flight Recorder and NCCL's log.

Rank 0 prints one line of JSON: seconds of a step without the profiler, of the slowest rank.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule

dist: Any = torch.distributed
cuda: Any = torch.cuda
HIDDEN = 2048
LAYERS = 4
BATCH = 512
TIMED_STEPS = 20
RECORDED_STEPS = 5
# a line for each call, also in the steps that are timed: microseconds of milliseconds
LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL"}


def model_of(job: str, place: Any, hidden: int) -> Any:
    model: Any = nn.Sequential(*(nn.Linear(hidden, hidden) for _ in range(LAYERS))).to(place)
    if job == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=hidden * hidden * 4 >> 20 or 1)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def step_of(model: Any, inputs: Any, synchronise: Callable[[], None]) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()
        synchronise()

    return step


def seconds_of(step: Callable[[], None], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        begin_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin_s)
    return seconds


def record(step: Callable[[], None], folder: Path, rank: int) -> None:
    """A profile, and Flight Recorder's last calls."""
    steps = schedule(wait=0, warmup=1, active=RECORDED_STEPS, repeat=1)
    with profile(record_shapes=True, schedule=steps) as recorded:
        for _ in range(1 + RECORDED_STEPS):
            step()
            recorded.step()
    for name in ("profile", "flight"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(folder / "profile" / f"rank{rank}.json.gz"))
    written: Any = torch._C._distributed_c10d
    flight = folder / "flight" / f"rank{rank}.json"
    flight.write_bytes(written._dump_fr_trace_json())


def main(words: list[str]) -> None:
    job = words[0]
    folder = Path(words[1])
    on_gpu = "cpu" not in words
    place = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    log = folder / "log"
    log.mkdir(parents=True, exist_ok=True)
    os.environ.update(LOG, NCCL_DEBUG_FILE=f"{log}/nccl.%h.%p", TORCH_FR_BUFFER_SIZE="2000")
    os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"  # its name before torch 2.10
    if on_gpu:
        cuda.set_device(place)
        dist.init_process_group("nccl", device_id=place)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    hidden = HIDDEN if on_gpu else HIDDEN // 8
    inputs = torch.randn(BATCH, hidden, device=place)
    synchronise = cuda.synchronize if on_gpu else dist.barrier
    step = step_of(model_of(job, place, hidden), inputs, synchronise)
    seconds_of(step, 5)
    dist.barrier()
    own = torch.tensor(seconds_of(step, TIMED_STEPS), device=place)
    record(step, folder, dist.get_rank())
    dist.all_reduce(own, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps({"job": job, "step_s": statistics.median(own.tolist())}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
