"""Moves data over several connections at once, with a thread for each; the caller takes the last one itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from .connection import Connection, IoVector

SMALL_BYTES = 64 * 1024  # up to here, waking a thread takes longer than filling the kernel's buffer


@dataclass(frozen=True, eq=False)
class Transfer:
    """What one connection has to move in one direction."""

    connection: Connection
    vectors: tuple[IoVector, ...]

    @property
    def size_bytes(self) -> int:
        return sum(vector.size_bytes for vector in self.vectors)


@dataclass(frozen=True, eq=False)
class PendingTransfers:
    """All that one wait has to complete."""

    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]

    @property
    def small(self) -> bool:
        return all(transfer.size_bytes <= SMALL_BYTES for transfer in (*self.sends, *self.receives))


Move = Callable[[tuple[IoVector, ...]], None]
Job = tuple[Move, tuple[IoVector, ...], Callable[[Exception], None]]  # method, argument, where a failure is passed to


class ThreadPool:
    """Threads are started as needed and kept for later cases. A failure of one never leaves another one waiting."""

    def __init__(self) -> None:
        self._queues: list[SimpleQueue[Job | None]] = []
        self._threads: list[threading.Thread] = []
        self._finished: SimpleQueue[None] = SimpleQueue()

    def reserve(self, threads: int) -> None:
        """Start threads until there are so many."""
        while len(self._threads) < threads:
            queue: SimpleQueue[Job | None] = SimpleQueue()
            name = f"commbench-tcp-{len(self._threads)}"
            self._queues.append(queue)
            self._threads.append(threading.Thread(target=self._work, args=(queue,), name=name, daemon=True))
            self._threads[-1].start()

    def move_small(self, pending: PendingTransfers) -> None:
        """In the caller's thread if the kernel takes all sends at once: then no order of receives can deadlock."""
        started = [(send, send.connection.send_nowait(send.vectors)) for send in pending.sends]
        unsent = tuple(Transfer(send.connection, rest) for send, rest in started if rest)
        if unsent:
            self.move(PendingTransfers(unsent, pending.receives))
            return
        for receive in pending.receives:
            receive.connection.receive(receive.vectors)

    def move(self, pending: PendingTransfers) -> None:
        """All transfers at once; raises the first error after all have ended."""
        transfers, errors = (*pending.sends, *pending.receives), []

        def fail(error: Exception) -> None:
            errors.append(error)
            for transfer in transfers:  # the others would wait for their timeouts
                transfer.connection.abort(error)

        jobs: list[Job] = [(send.connection.send, send.vectors, fail) for send in pending.sends]
        jobs += [(receive.connection.receive, receive.vectors, fail) for receive in pending.receives]
        self.reserve(len(jobs) - 1)
        for queue, job in zip(self._queues, jobs[:-1], strict=False):
            queue.put(job)
        _run(jobs[-1])
        for _ in jobs[:-1]:
            self._finished.get()
        if errors:
            raise errors[0]

    def close(self) -> None:
        """The connections must have been aborted before."""
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, queue: SimpleQueue[Job | None]) -> None:
        while (job := queue.get()) is not None:
            _run(job)
            self._finished.put(None)


def _run(job: Job) -> None:
    move, vectors, fail = job
    try:
        move(vectors)
    except Exception as error:
        fail(error)
