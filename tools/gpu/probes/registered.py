"""`python registered.py WAY`: whether torch itself can register memory, or share it, between two
ranks on one GPU, and whether its sums are right.

WAY: none, local, symmetric (buffers of NCCL), or CUDA, NCCL, NVSHMEM (backends of torch's symmetric
memory). Prints one JSON object a line.
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

cuda: Any = torch.cuda
processes: Any = torch.multiprocessing
dist: Any = torch.distributed
RANKS = 2
SIZES = (64, 1 << 16, 1 << 20)
OPERATIONS = ("one_shot_all_reduce", "two_shot_all_reduce_", "multimem_all_reduce_")


def answer(way: str, size: int, operation: str, call: Callable[[], Any]) -> None:
    """`call` returns the sums of ones. All ranks call it; rank 0 prints."""
    row: dict[str, Any] = {"way": way, "bytes": size, "operation": operation}
    try:
        result = call()
        cuda.synchronize()
        row["right"] = bool((result == RANKS).all())
    except Exception as error:
        row["error"] = " ".join(str(error).split())[:300]
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)


def summed(data: Any) -> Any:
    dist.all_reduce(data)
    return data


def of_nccl(way: str, place: Any) -> None:
    backend = dist.group.WORLD._get_backend(place)
    pool = cuda.MemPool(None if way == "none" else backend.mem_allocator)
    with cuda.use_mem_pool(pool):
        buffers = [torch.ones(size // 4, device=place) for size in SIZES]
    if way == "local":
        backend.register_mem_pool(pool)
    elif way == "symmetric":
        backend.register_mem_pool(pool, symm=True)
    for size, data in zip(SIZES, buffers, strict=True):
        answer(way, size, "all_reduce", partial(summed, data))


def of_symmetric_memory(way: str, place: Any) -> None:
    symmetric: Any = import_module("torch.distributed._symmetric_memory")
    if way != "CUDA":
        symmetric.set_backend(way)
    group = dist.group.WORLD.group_name
    for size in SIZES:
        data = symmetric.empty(size // 2, dtype=torch.bfloat16, device=place)
        symmetric.rendezvous(data, group)
        for operation in OPERATIONS:
            data.fill_(1)
            cuda.synchronize()
            dist.barrier()
            call = getattr(torch.ops.symm_mem, operation)
            answer(way, size, operation, partial(call, data, "sum", group))


def probe(rank: int, way: str, store: str) -> None:
    place = torch.device("cuda", 0)
    cuda.set_device(place)
    meeting = dist.FileStore(store, RANKS)
    dist.init_process_group("nccl", store=meeting, rank=rank, world_size=RANKS, device_id=place)
    (of_nccl if way in ("none", "local", "symmetric") else of_symmetric_memory)(way, place)
    sys.stdout.flush()
    os._exit(0)  # what has failed may wait for ever in its end


if __name__ == "__main__":
    processes.spawn(probe, (sys.argv[1], str(Path("store").resolve())), nprocs=RANKS)
