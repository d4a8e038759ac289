"""One rank of a comparison: sides take turns, block by block, in the same processes and on the same
buffers.

Rank 0 prints one line of JSON: for each case and side the median nanoseconds per operation in each
block.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from by_hand import Side, hand_gloo, hand_mpi
from cases import Held, check, planned
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.core.protocols import Communicator
from commbench.core.variables import Mode

BLOCKS = {"mpi": 24, "gloo": 104}
WARM = 4  # gloo varies by several per cent from block to block
MIB = 2**20
# bytes: repetitions per block. Not in place, so that no side refills buffers before each repetition
CASES = {
    "mpi": {
        "p2p_latency": {8: 3000, 1024: 3000, 65536: 400, 4 * MIB: 12},
        "p2p_bandwidth": {65536: 40, 4 * MIB: 3},
        "p2p_bandwidth buffers=shared": {8192: 100, MIB: 6},
        "all_reduce": {8: 3000, 1024: 3000, MIB: 40},
    },
    "gloo": {"p2p_latency": {8: 200, 65536: 150, 4 * MIB: 10}},
}


@dataclass(frozen=True)
class Library:
    """An opened library: commbench's communicator, the sides for a case, and the slowest rank's
    times."""

    rank: int
    ours: Communicator
    sides: Callable[[Planned, Held], dict[str, Side]]
    slowest: Callable[[NDArray[np.int64]], NDArray[np.int64]]


def compare(backend: str, library: Library) -> None:
    results = {}
    for benchmark, sizes in CASES[backend].items():
        name, *axes = benchmark.split()
        words = [
            f"backend={backend}",
            f"benchmark={name}",
            *axes,
            f"sizes={list(sizes)}",
            "in_place=false",
        ]
        for job in planned(words, library.rank):
            n = sizes[job.case.message_bytes]
            results[f"{benchmark} {job.case.message_bytes}"] = blocks(
                job, library, n, BLOCKS[backend]
            )
    if library.rank == 0:
        print(json.dumps(results), flush=True)


def blocks(job: Planned, library: Library, n: int, turns: int) -> dict[str, list[float]]:
    program = job.benchmark.program(job.case, library.rank, job.size)
    held: Any = {spec.name: library.ours.allocate(spec, job.pool) for spec in program.buffers}
    sides = library.sides(job, held)
    for side in sides.values():
        check(job, library.rank, held, side)
    medians: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns):
        for name in sorted(sides, reverse=turn % 2 == 1):  # ABBA: a drift affects all sides alike
            elapsed = np.diff(sides[name](n)[0], axis=1)[:, 0]
            if job.shape.headline == "max_over_ranks":
                elapsed = library.slowest(elapsed)
            if turn >= WARM:
                medians[name].append(float(np.median(elapsed)) / job.shape.operations_per_sample)
    return medians


def mpi_library(path: str | None) -> Library:
    """`path` is the compiled reference.c, or None."""
    from commbench.backends.mpi.backend import MpiCommunicator
    from commbench.hardware.mpi_library import load_mpi

    mpi = load_mpi("auto", "funneled")
    comm = mpi.COMM_WORLD.Dup()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    ours = MpiCommunicator(mpi, comm)
    rank = comm.rank
    reference = None
    if path is not None:
        from reference import Reference

        reference = Reference(path, mpi, comm)

    def sides(job: Planned, held: Held) -> dict[str, Side]:
        program = job.benchmark.program(job.case, rank, job.size)
        modes = {engine: Mode(engine, job.case.sync) for engine in ("native", "python")}
        made: dict[str, Side] = {
            engine: ours.prepare({rank: program}, {rank: held}, mode)
            for engine, mode in modes.items()
        }
        if job.case.benchmark == "p2p_latency":
            messages = (
                [held[name].words(), job.case.elements, mpi.FLOAT] for name in ("send", "recv")
            )
            made["by_hand"] = hand_mpi(comm, *messages)
        if reference is not None:
            made["c"] = reference.side(job, held)
        return made

    def slowest(elapsed: NDArray[np.int64]) -> NDArray[np.int64]:
        most = np.empty_like(elapsed)
        comm.Allreduce(np.ascontiguousarray(elapsed), most, mpi.MAX)
        return most

    return Library(rank, ours, sides, slowest)


def gloo_library() -> Library:
    import torch
    import torch.distributed as dist

    from commbench.backends.torch.distributed import TorchCommunicator

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.group.WORLD
    ours = TorchCommunicator("gloo", group, (0, 1), rank)

    def sides(job: Planned, held: Held) -> dict[str, Side]:
        program = job.benchmark.program(job.case, rank, job.size)
        send, recv = (torch.from_numpy(held[name].words()) for name in ("send", "recv"))
        python = ours.prepare({rank: program}, {rank: held}, Mode("python", job.case.sync))
        return {"python": python, "by_hand": hand_gloo(dist, group, send, recv, rank)}

    def slowest(elapsed: NDArray[np.int64]) -> NDArray[np.int64]:
        most = torch.from_numpy(elapsed.copy())
        dist.all_reduce(most, dist.ReduceOp.MAX, group)
        return np.asarray(most)

    return Library(rank, ours, sides, slowest)


if __name__ == "__main__":
    if sys.argv[1] == "mpi":
        compare("mpi", mpi_library(sys.argv[2] if len(sys.argv) > 2 else None))
    else:
        compare("gloo", gloo_library())
