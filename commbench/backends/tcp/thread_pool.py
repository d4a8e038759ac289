"""Several connections at once: a sleeping thread for each but the last, which the caller takes itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from .batch import Batch
from .connection import Connection

SMALL_BYTES = 64 * 1024  # a flow up to here: waking a thread takes longer than the kernel's buffer takes to fill


@dataclass(frozen=True, eq=False)
class Flow:
    """What one connection has to move one way."""

    connection: Connection
    parts: tuple[Batch, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, eq=False)
class Traffic:
    """All that is pending at a wait."""

    sends: tuple[Flow, ...]
    receives: tuple[Flow, ...]

    @property
    def small(self) -> bool:
        return all(flow.size <= SMALL_BYTES for flow in (*self.sends, *self.receives))


Move = Callable[[tuple[Batch, ...]], None]
Job = tuple[Move, tuple[Batch, ...], Callable[[Exception], None]]  # what to do, with what, and who hears of a failure


class ThreadPool:
    """Threads by need, kept for later cases. Nobody's failure leaves another one waiting."""

    def __init__(self) -> None:
        self._desks: list[SimpleQueue[Job | None]] = []
        self._threads: list[threading.Thread] = []
        self._ends: SimpleQueue[None] = SimpleQueue()

    def hire(self, hands: int) -> None:
        while len(self._threads) < hands:
            desk: SimpleQueue[Job | None] = SimpleQueue()
            name = f"commbench-tcp-{len(self._threads)}"
            self._desks.append(desk)
            self._threads.append(threading.Thread(target=self._work, args=(desk,), name=name, daemon=True))
            self._threads[-1].start()

    def move_small(self, traffic: Traffic) -> None:
        """In the caller's thread where the kernel takes all sends at once: then no order of receives can deadlock."""
        offered = [(flow, flow.connection.offer(flow.parts)) for flow in traffic.sends]
        left = tuple(Flow(flow.connection, rest) for flow, rest in offered if rest)
        if left:
            self.move(Traffic(left, traffic.receives))
            return
        for flow in traffic.receives:
            flow.connection.receive(flow.parts)

    def move(self, traffic: Traffic) -> None:
        """All flows at once; raises the first error once all have ended."""
        flows, errors = (*traffic.sends, *traffic.receives), []

        def fail(error: Exception) -> None:
            errors.append(error)
            for flow in flows:  # the others would wait for their timeouts
                flow.connection.abort(error)

        jobs: list[Job] = [(flow.connection.send, flow.parts, fail) for flow in traffic.sends]
        jobs += [(flow.connection.receive, flow.parts, fail) for flow in traffic.receives]
        self.hire(len(jobs) - 1)
        for desk, job in zip(self._desks, jobs[:-1], strict=False):
            desk.put(job)
        _do(jobs[-1])
        for _ in jobs[:-1]:
            self._ends.get()
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Their connections must be aborted before."""
        for desk in self._desks:
            desk.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, desk: SimpleQueue[Job | None]) -> None:
        while (job := desk.get()) is not None:
            _do(job)
            self._ends.put(None)


def _do(job: Job) -> None:
    move, parts, fail = job
    try:
        move(parts)
    except Exception as error:
        fail(error)
