"""One rank of a comparison: sides take turns, block by block, in the same processes and on the same
buffers.

Rank 0 prints one line of JSON: for each case and side the median nanoseconds per operation in each
block.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from by_hand import Side, hand_calls, hand_gloo, hand_mpi
from cases import Held, check, planned
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.core.protocols import Communicator
from commbench.core.variables import Mode
from commbench_replay.workload import (
    SEND_RECV,
    RankOrder,
    Workload,
    WorkloadCall,
    WorkloadOperation,
)
from commbench_replay.workload_file import workload_text

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
REPLAYED_CALLS = 16
REPLAYED_STEPS = {"mpi": 100, "gloo": 5}  # repetitions per block


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


def compare_replay(backend: str, library: Library) -> None:
    """Steps of a job: REPLAYED_CALLS all_reduces of 8 B, and as many messages there and back."""
    results = {}
    for name, workload in replayed_workloads().items():
        with TemporaryDirectory(prefix="commbench-perf-") as folder:
            path = Path(folder) / "job.json"
            path.write_text(workload_text(workload))
            words = [f"backend={backend}", "benchmark=replay", f"workload={path}"]
            (job,) = (job for job in planned(words, library.rank) if job.case.gaps is not None)
            steps = REPLAYED_STEPS[backend]
            results[name] = blocks(job, library, steps, BLOCKS[backend])
    if library.rank == 0:
        print(json.dumps(results), flush=True)


def replayed_workloads() -> dict[str, Workload]:
    reduced = WorkloadOperation(0, "all_reduce", "float32", (8,), (8,))
    there, back = (
        WorkloadOperation(0, SEND_RECV, "float32", (8,), (8,), peers=peers)
        for peers in ((0, 1), (1, 0))
    )
    same = RankOrder((0, 1), (WorkloadCall(0),) * REPLAYED_CALLS)
    ping_pong = RankOrder((0, 1), (WorkloadCall(0), WorkloadCall(1)) * REPLAYED_CALLS)
    return {
        "replay of all_reduces 8": Workload(2, ((0, 1),), (reduced,), (same,)),
        "replay of messages 8": Workload(2, ((0, 1),), (there, back), (ping_pong,)),
    }


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
                medians[name].append(float(np.median(elapsed)) / job.shape.operations)
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
        if job.case.benchmark == "replay":
            made["by_hand"] = hand_calls(
                [*_input_again(held), comm.Barrier], _mpi_calls(mpi, comm, held)
            )
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
        python = ours.prepare({rank: program}, {rank: held}, Mode("python", job.case.sync))
        if job.case.benchmark == "replay":
            before: list[Callable[[], Any]] = [*_input_again(held), partial(dist.barrier, group)]
            return {"python": python, "by_hand": hand_calls(before, _gloo_calls(dist, group, held))}
        send, recv = (torch.from_numpy(held[name].words()) for name in ("send", "recv"))
        return {"python": python, "by_hand": hand_gloo(dist, group, send, recv, rank)}

    def slowest(elapsed: NDArray[np.int64]) -> NDArray[np.int64]:
        most = torch.from_numpy(elapsed.copy())
        dist.all_reduce(most, dist.ReduceOp.MAX, group)
        return np.asarray(most)

    return Library(rank, ours, sides, slowest)


def _reduced(held: Held) -> NDArray[Any]:
    """What the reductions of a replay have in place."""
    return next(buffer.words() for name, buffer in held.items() if ".data." in name)


def _input_again(held: Held) -> list[Callable[[], Any]]:
    """What puts the input of a reduction into its place, as commbench does."""
    sources = (buffer.words() for name, buffer in held.items() if name.endswith(".source"))
    return [partial(np.copyto, _reduced(held), source) for source in sources]


def _mpi_calls(mpi: Any, comm: Any, held: Held) -> list[Callable[[], Any]]:
    """Those of replayed_workloads, on the same buffers."""
    if _input_again(held):
        message = [_reduced(held), 2, mpi.FLOAT]
        return [partial(comm.Allreduce, mpi.IN_PLACE, message, mpi.MAX)] * REPLAYED_CALLS
    there, back = ([buffer.words(), 2, mpi.FLOAT] for buffer in held.values())
    if comm.rank == 0:
        return [partial(comm.Send, there, 1), partial(comm.Recv, back, 1)] * REPLAYED_CALLS
    return [partial(comm.Recv, there, 0), partial(comm.Send, back, 0)] * REPLAYED_CALLS


def _gloo_calls(dist: Any, group: Any, held: Held) -> Sequence[Callable[[], Any]]:
    """Those of replayed_workloads, on the same buffers."""
    import torch

    if _input_again(held):
        reduced = torch.from_numpy(_reduced(held))
        return [partial(dist.all_reduce, reduced, dist.ReduceOp.MAX, group)] * REPLAYED_CALLS
    there, back = (torch.from_numpy(buffer.words()) for buffer in held.values())
    if dist.get_rank() == 0:
        pair = [partial(dist.send, there, 1, group), partial(dist.recv, back, 1, group)]
    else:
        pair = [partial(dist.recv, there, 0, group), partial(dist.send, back, 0, group)]
    return pair * REPLAYED_CALLS


if __name__ == "__main__":
    kind = sys.argv[1]
    more = sys.argv[2:]
    replay = "replay" in more
    run = compare_replay if replay else compare
    if kind == "mpi":
        run("mpi", mpi_library(None if replay or not more else more[0]))
    else:
        run("gloo", gloo_library())
