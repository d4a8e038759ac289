"""One rank of a comparison: sides take turns, block by block, in the same processes and on the same buffers.

Prints one line of JSON on rank 0: for each size the median nanoseconds of each side in each block.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.contracts import Case, Mode

BLOCKS, WARM = 24, 4
MPI_SIZES = {8: 3000, 1024: 3000, 65536: 400, 4 << 20: 12}  # bytes: repetitions a block
GLOO_SIZES = {8: 300, 65536: 200, 4 << 20: 12}

Side = Callable[[int], NDArray[np.int64]]


def case_of(backend: str, size: int) -> Case:
    return Case(
        benchmark="p2p_latency", backend=backend, engine="perf", timing_mode="host", timing="perf", sync="none",
        device="cpu", dtype="float32", layout="1x2", pair="0-1", message_bytes=size, count=size // 4, window=None,
        in_place=None, reduction=None, root=None, schedule=None, streams=None, staging="none", cache="warm",
        cuda_ipc="auto", interface=None,
    )  # fmt: skip


def compare(rank: int, sizes: dict[int, int], sides_of: Callable[[int], dict[str, Side]]) -> None:
    results = {}
    for size, n in sizes.items():
        sides = sides_of(size)
        medians: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(BLOCKS):
            for name in sorted(sides, reverse=turn % 2 == 1):  # ABBA: a drift hits all sides alike
                stamps = sides[name](n)[0]
                if turn >= WARM:
                    medians[name].append(float(np.median(stamps[:, 1] - stamps[:, 0])))
        results[size] = medians
    if rank == 0:
        print(json.dumps(results), flush=True)


def mpi_sides(reference: str | None) -> tuple[int, Callable[[int], dict[str, Side]]]:
    from commbench.backends.mpi import MpiCommunicator
    from commbench.backends.mpi_native import handle
    from commbench.mpi_library import load

    mpi = load("auto", "funneled")
    comm = mpi.COMM_WORLD.Dup()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    ours, rank = MpiCommunicator(mpi, comm), comm.rank
    library = ctypes.CDLL(reference) if reference else None

    def c_side(held: Any, count: int) -> Side:
        word = ctypes.c_ssize_t

        def run(n: int) -> NDArray[np.int64]:
            stamps = np.zeros((1, n, 2), dtype=np.int64)
            buffers = [ctypes.c_void_p(held[name].address()) for name in ("send", "recv")]
            handles = word(handle(mpi, mpi.FLOAT)), word(handle(mpi, comm))
            code = library.pingpong(  # type: ignore[union-attr]
                *buffers,
                count,
                handles[0],
                1 - rank,
                int(rank == 0),
                handles[1],
                n,
                ctypes.c_void_p(stamps.ctypes.data),
            )
            assert code == 0, f"the C ping-pong returned {code}"
            return stamps

        return run

    def sides_of(size: int) -> dict[str, Side]:
        program = P2PLatency().program(case_of("mpi", size), rank, 2)
        held: Any = {spec.name: ours.allocate(spec, 1) for spec in program.buffers}
        send, recv = ([held[name].words(), size // 4, mpi.FLOAT] for name in ("send", "recv"))
        peer = 1 - rank
        sides: dict[str, Side] = {
            engine: ours.prepare({rank: program}, {rank: held}, Mode(engine)) for engine in ("native", "python")
        }
        sides["by_hand"] = hand_mpi(comm, send, recv, peer)
        if library is not None:
            sides["c"] = c_side(held, size // 4)
        return sides

    return rank, sides_of


def hand_mpi(comm: Any, send: Any, recv: Any, peer: int) -> Side:
    def run(n: int) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        row, clock, put, get = stamps[0], time.perf_counter_ns, comm.Send, comm.Recv
        comm.Barrier()
        if comm.rank == 0:
            for r in range(n):
                t0 = clock()
                put(send, peer, 0)
                get(recv, peer, 0)
                t1 = clock()
                row[r, 0], row[r, 1] = t0, t1
        else:
            for r in range(n):
                t0 = clock()
                get(recv, peer, 0)
                put(send, peer, 0)
                t1 = clock()
                row[r, 0], row[r, 1] = t0, t1
        return stamps

    return run


def hand_gloo(dist: Any, group: Any, send: Any, recv: Any, rank: int) -> Side:
    def run(n: int) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        row, clock = stamps[0], time.perf_counter_ns
        dist.barrier(group)
        if rank == 0:
            for r in range(n):
                t0 = clock()
                dist.send(send, 1, group)
                dist.recv(recv, 1, group)
                t1 = clock()
                row[r, 0], row[r, 1] = t0, t1
        else:
            for r in range(n):
                t0 = clock()
                dist.recv(recv, 0, group)
                dist.send(send, 0, group)
                t1 = clock()
                row[r, 0], row[r, 1] = t0, t1
        return stamps

    return run


def gloo_sides() -> tuple[int, Callable[[int], dict[str, Side]]]:
    import torch
    import torch.distributed as dist

    from commbench.backends.torch_distributed import TorchCommunicator

    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), dist.group.WORLD
    ours = TorchCommunicator("gloo", group, (0, 1), rank)

    def sides_of(size: int) -> dict[str, Side]:
        program = P2PLatency().program(case_of("gloo", size), rank, 2)
        held: Any = {spec.name: ours.allocate(spec, 1) for spec in program.buffers}
        send, recv = (torch.from_numpy(held[name].words()) for name in ("send", "recv"))
        python = ours.prepare({rank: program}, {rank: held}, Mode("python"))
        return {"python": python, "by_hand": hand_gloo(dist, group, send, recv, rank)}

    return rank, sides_of


if __name__ == "__main__":
    if sys.argv[1] == "mpi":
        compare_rank, chosen = mpi_sides(sys.argv[2] if len(sys.argv) > 2 else None)
        compare(compare_rank, MPI_SIZES, chosen)
    else:
        compare_rank, chosen = gloo_sides()
        compare(compare_rank, GLOO_SIZES, chosen)
