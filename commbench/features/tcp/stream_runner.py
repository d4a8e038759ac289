"""A stream over all connections of a pair: writes follow one another, and none waits for an answer.

A connection takes the next write when it has room, and the receiver counts bytes, whichever
connection has brought them: a slow connection holds no other one up.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from commbench.core.program import Barrier, Program, Recv, Send
from commbench.core.variables import Mode, StreamThreads
from commbench.engines.lowered import Call, measured_calls, now_ns

from .connection import Connection, ThreadPool
from .lowering import TcpLowering


@dataclass(frozen=True)
class Write(Send):
    """The sender waits until there is room for the message, and for no answer. Whichever connection
    of the pair has room takes the next one."""


@dataclass(frozen=True)
class Read(Recv):
    """The other end of a Write."""


@dataclass(frozen=True, eq=False)
class Lane:
    """A connection, and the memory of its messages."""

    connection: Connection
    message: memoryview


@dataclass(frozen=True)
class Lanes:
    """The connections of one direction."""

    lanes: tuple[Lane, ...]
    threads: StreamThreads

    @property
    def by_thread(self) -> list[tuple[Lane, ...]]:
        """The connections that each thread drives."""
        return [(lane,) for lane in self.lanes] if self.threads == "each" else [self.lanes]


def stream_runner(lowering: TcpLowering, program: Program, mode: Mode) -> StreamRunner:
    """That of a program of writes and reads; its messages are the slots that they name."""
    steps = [step for step in program.steps if isinstance(step, Write | Read)]
    sends, receives = (
        Lanes(
            tuple(
                Lane(
                    lowering.endpoint[lowering.ranks[step.peer], step.data.slot],
                    memoryview(lowering.elements(step.data, 0)).cast("B"),
                )
                for step in dict.fromkeys(steps)
                if isinstance(step, kind)
            ),
            mode.stream_threads,
        )
        for kind in (Write, Read)
    )
    writes = len(steps) // (2 if sends.lanes and receives.lanes else 1)
    threads = lowering.endpoint.threads
    return StreamRunner(lowering.call(Barrier()), threads, sends, receives, writes)


class StreamRunner:
    """See Runner; hosts one rank, which sends, receives, or does both with itself. `enter` runs
    before each block. A repetition is as many writes as `writes` says."""

    calls: tuple[str, ...] = ()

    def __init__(
        self, enter: Call, threads: ThreadPool, outgoing: Lanes, incoming: Lanes, writes: int
    ) -> None:
        self.progress = np.array([0, -1], dtype=np.int64)
        self._enter = enter
        self._threads = threads
        self._outgoing = outgoing
        self._incoming = incoming
        self._writes = writes
        self._lanes = (*outgoing.lanes, *incoming.lanes)
        self._repetition_bytes = writes * len(self._lanes[0].message)

    def __call__(self, n: int) -> NDArray[np.int64]:
        with measured_calls(), wake_up() as wake:
            self._enter.function(*self._enter.args)
            sent, received = (Marks(n, self._repetition_bytes, self.progress) for _ in range(2))
            jobs: list[Callable[[], None]] = []
            if self._outgoing.lanes:
                spare = Spare(n * self._writes - len(self._outgoing.lanes))
                jobs += [partial(feed, own, spare, sent) for own in self._outgoing.by_thread]
            if self._incoming.lanes:
                is_alone = len(self._incoming.lanes) == 1
                jobs += [
                    partial(drain_one, own[0], received)
                    if is_alone
                    else partial(drain, own, received, wake)
                    for own in self._incoming.by_thread
                ]
            self._threads.run(jobs, [lane.connection for lane in self._lanes])
        return (received if self._incoming.lanes else sent).stamps[np.newaxis]


@contextmanager
def wake_up() -> Iterator[int]:
    """A descriptor that stays readable once it was written to."""
    descriptor = os.eventfd(0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Marks:
    """When each repetition had moved: the bytes of all connections are counted together."""

    def __init__(self, n: int, repetition_bytes: int, progress: NDArray[np.int64]) -> None:
        self._ends = np.zeros(n, dtype=np.int64)
        self._begin = now_ns()
        self._repetition_bytes = repetition_bytes
        self._moved = 0
        self._done = 0
        self._progress = progress
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._moved += size_bytes
            done = self._moved // self._repetition_bytes
            if done > self._done:
                self._ends[self._done : done] = now_ns()
                self._progress[0] = self._done = done

    @property
    def is_complete(self) -> bool:
        return self._done == len(self._ends)

    @property
    def stamps(self) -> NDArray[np.int64]:
        """[n, 2]: a repetition begins when the one before it has ended."""
        starts = np.concatenate([[self._begin], self._ends[:-1]])
        return np.stack([starts, self._ends], axis=1)


class Spare:
    """The writes of a block beyond the first one of each connection, for whichever has room."""

    def __init__(self, writes: int) -> None:
        self._writes = writes
        self._taken = count()

    def take(self) -> bool:
        # counting is one step of the interpreter: no other thread comes between
        return next(self._taken) < self._writes


# ---------------------------------------------------------------- what a thread does


def feed(lanes: Sequence[Lane], spare: Spare, sent: Marks) -> None:
    """Write on each connection once, then as long as there are spare writes."""
    if len(lanes) == 1:
        _write_on(lanes[0], spare, sent)
        return
    by_descriptor = {lane.connection.outward.fileno(): lane for lane in lanes}
    rest = {descriptor: lane.message for descriptor, lane in by_descriptor.items()}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLOUT)
    while rest:
        for descriptor in _ready(poll, by_descriptor):
            lane = by_descriptor[descriptor]
            moved = lane.connection.send_some(rest[descriptor])
            sent.add(moved)
            rest[descriptor] = rest[descriptor][moved:]
            if rest[descriptor]:
                continue
            if spare.take():
                rest[descriptor] = lane.message
            else:
                del rest[descriptor]
                poll.unregister(descriptor)


def _write_on(lane: Lane, spare: Spare, sent: Marks) -> None:
    """Blocking writes: one system call each."""
    size_bytes = len(lane.message)
    goes_on = True
    while goes_on:
        lane.connection.send_one(lane.message)
        sent.add(size_bytes)
        goes_on = spare.take()


def drain_one(lane: Lane, received: Marks) -> None:
    """Read whole messages from the only connection."""
    size_bytes = len(lane.message)
    while not received.is_complete:
        lane.connection.receive_one(lane.message)
        received.add(size_bytes)


def drain(lanes: Sequence[Lane], received: Marks, wake: int) -> None:
    """Read what comes on any of these connections, until all that was sent on all of them is
    there."""
    by_descriptor = {lane.connection.inward.fileno(): lane for lane in lanes}
    rest = {descriptor: lane.message for descriptor, lane in by_descriptor.items()}
    poll = select.poll()
    for descriptor in (*by_descriptor, wake):
        poll.register(descriptor, select.POLLIN)
    while not received.is_complete:
        for descriptor in _ready(poll, by_descriptor):
            if descriptor == wake:
                continue
            lane = by_descriptor[descriptor]
            moved = lane.connection.receive_some(rest[descriptor])
            received.add(moved)
            rest[descriptor] = rest[descriptor][moved:] or lane.message
    os.eventfd_write(wake, 1)


def _ready(poll: select.poll, by_descriptor: Mapping[int, Lane]) -> list[int]:
    """The descriptors at which something can be moved; raises TimeoutError where nothing can for
    the time that a connection may stand still."""
    lane = next(iter(by_descriptor.values()))
    ready = poll.poll(lane.connection.timeout_s * 1000)
    if not ready:
        raise lane.connection.failed(BlockingIOError())
    return [descriptor for descriptor, _ in ready]
