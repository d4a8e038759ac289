"""A rank that opens communicators through commbench's runner and by hand, in turn: `python
opened_by_hand.py BACKEND BENCHMARK UNTIL BLOCKS`, as a rank of torchrun or of mpirun. Rank 0 prints
both medians of the slowest rank's times in us."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from sample_cases import GPU_CASE

from commbench.core.case import World
from commbench.core.variables import Mode

OF_A_BLOCK = 8
Times = list[float]  # of the slowest rank, in us


def case_program(benchmark: str, until: str, rank: int, size: int) -> Any:
    from dataclasses import replace

    from composed import every_benchmark

    case: Any = replace(GPU_CASE, benchmark=benchmark, until=until, split=2)
    return every_benchmark()[benchmark].program(case, rank, size)


def groups_of(benchmark: str, size: int) -> list[list[int]]:
    ranks = list(range(size))
    return [ranks] if benchmark == "communicator_init" else [ranks[: size // 2], ranks[size // 2 :]]


def gloo(benchmark: str, until: str) -> tuple[Any, Callable[[], float], Any, int, int]:
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore

    from commbench.backends.torch.gloo import Gloo
    from commbench.runtime.control import StoreControl

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*address, is_master=False)
    world = World(rank, size, (tuple(range(size)),), (rank,))
    communicator = Gloo().open(world, StoreControl(store, rank, size))
    mine = groups_of(benchmark, size)

    def by_hand() -> float:
        dist.barrier()
        begin_s = time.perf_counter()
        opened = [dist.new_group(group) for group in mine]
        (own,) = (new for new, group in zip(opened, mine, strict=True) if rank in group)
        if until == "first_call":
            dist.barrier(own)
        taken_s = time.perf_counter() - begin_s
        if until == "open":
            dist.barrier(own)
        dist.destroy_process_group(own)
        return taken_s

    def slowest(values: Times) -> Times:
        all_values = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(all_values, dist.ReduceOp.MAX)
        return [float(value) for value in all_values]

    return communicator, by_hand, slowest, rank, size


def mpi(benchmark: str, until: str) -> tuple[Any, Callable[[], float], Any, int, int]:
    import numpy as np

    from commbench.backends.mpi.backend import Mpi
    from commbench.hardware import mpi_library

    mpi = mpi_library.load_mpi("auto", "funneled")
    comm = mpi.COMM_WORLD
    rank, size = comm.rank, comm.size
    world = World(rank, size, (tuple(range(size)),), (rank,))
    unused: Any = None
    communicator = Mpi().open(world, unused)
    colour = next(
        number for number, group in enumerate(groups_of(benchmark, size)) if rank in group
    )

    def by_hand() -> float:
        comm.Barrier()
        begin_s = time.perf_counter()
        is_split = benchmark == "communicator_split"
        opened = comm.Split(colour, rank) if is_split else comm.Dup()
        if until == "first_call":
            opened.Barrier()
        taken_s = time.perf_counter() - begin_s
        if until == "open":
            opened.Barrier()
        opened.Free()
        return taken_s

    def slowest(values: Times) -> Times:
        all_values = np.zeros(len(values))
        comm.Allreduce(np.array(values), all_values, mpi.MAX)
        return all_values.tolist()

    return communicator, by_hand, slowest, rank, size


def main() -> None:
    backend, benchmark, until, blocks = sys.argv[1:]
    opened = {"gloo": gloo, "mpi": mpi}[backend](benchmark, until)
    communicator, by_hand, slowest, rank, size = opened
    program = case_program(benchmark, until, rank, size)
    runner = communicator.runner(program, {}, Mode(engine="python", sync="barrier"))
    measured: Times = []
    hand: Times = []
    for block in range(2 * (int(blocks) + 1)):
        if block % 4 in (0, 3):  # neither is always the first
            stamps = runner(OF_A_BLOCK)[0]
            measured += slowest([float(end - begin) / 1e3 for begin, end in stamps])
        else:
            hand += slowest([by_hand() * 1e6 for _ in range(OF_A_BLOCK)])
    if rank == 0:
        both = [median(values[OF_A_BLOCK:]) for values in (measured, hand)]
        print(json.dumps(both), flush=True)
    communicator.close()


if __name__ == "__main__":
    main()
