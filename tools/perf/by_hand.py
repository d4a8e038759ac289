"""The loops that one would write by hand: a ping-pong with mpi4py, one with torch.distributed, and
the calls of a step of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Side = Callable[[int], NDArray[np.int64]]


def hand_mpi(comm: Any, send: Any, recv: Any) -> Side:
    """`send` and `recv` are [array, count, datatype]."""
    peer = 1 - comm.rank

    def run(n: int) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        row = stamps[0]
        clock = time.perf_counter_ns
        put = comm.Send
        get = comm.Recv
        comm.Barrier()
        if comm.rank == 0:
            for r in range(n):
                t0 = clock()
                put(send, peer, 0)
                get(recv, peer, 0)
                t1 = clock()
                row[r, 0] = t0
                row[r, 1] = t1
        else:
            for r in range(n):
                t0 = clock()
                get(recv, peer, 0)
                put(send, peer, 0)
                t1 = clock()
                row[r, 0] = t0
                row[r, 1] = t1
        return stamps

    return run


def hand_gloo(dist: Any, group: Any, send: Any, recv: Any, rank: int) -> Side:
    """`send` and `recv` are tensors."""

    def run(n: int) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        row = stamps[0]
        clock = time.perf_counter_ns
        dist.barrier(group)
        if rank == 0:
            for r in range(n):
                t0 = clock()
                dist.send(send, 1, group)
                dist.recv(recv, 1, group)
                t1 = clock()
                row[r, 0] = t0
                row[r, 1] = t1
        else:
            for r in range(n):
                t0 = clock()
                dist.recv(recv, 0, group)
                dist.send(send, 0, group)
                t1 = clock()
                row[r, 0] = t0
                row[r, 1] = t1
        return stamps

    return run


def hand_calls(before: Sequence[Callable[[], Any]], calls: Sequence[Callable[[], Any]]) -> Side:
    """All calls of a step one after another; `before` each step, a barrier at last."""

    def run(n: int) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        row = stamps[0]
        clock = time.perf_counter_ns
        for r in range(n):
            for prepare in before:
                prepare()
            t0 = clock()
            for call in calls:
                call()
            t1 = clock()
            row[r, 0] = t0
            row[r, 1] = t1
        return stamps

    return run
