"""Steps as calls on connections.

A message is cut into one part a stream; part i travels on connection i, behind the parts of earlier messages, so that
messages need no header: both ends' programs name the same ones in the same order. Messages that are pending at a wait
and go the same way over the same connection are handed to the kernel in one sendmsg or recvmsg (each keeps its own
memory; the wire carries the same bytes). A blocking message alone is one system call a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from commbench.buffers.host import HostBuffer
from commbench.core.errors import Unsupported
from commbench.core.program import Barrier, Copy, Irecv, Isend, Program, Recv, Send, Step, View, WaitAll
from commbench.engines.lowered import Call, Lowered, Rotating

from .batch import batches
from .connection import Connection
from .endpoint import BARRIER, Endpoint, Key
from .thread_pool import Flow, Traffic

NO_COLLECTIVES = "tcp is point to point only: sockets know no collectives"
MESSAGES = (Send, Recv, Isend, Irecv)
POSTED = Call(lambda: None)  # a step whose work is done at the next wait: no line in the loop
Messages = tuple[tuple[int, View], ...]  # peer, data


def peers(program: Program) -> list[int]:
    """All that the program talks to; raises Unsupported where it wants more than messages."""
    steps = (*program.steps, *program.reset)
    if any(not isinstance(step, (*MESSAGES, WaitAll, Barrier, Copy)) for step in steps):
        raise Unsupported(NO_COLLECTIVES)
    return sorted({step.peer for step in steps if isinstance(step, MESSAGES)})


def barrier_partners(rank: int, size: int) -> list[tuple[int, int]]:
    """To whom and from whom a byte goes in each round (dissemination; Hensgen, Finkel, Manber 1988)."""
    distances = [1 << power for power in range((size - 1).bit_length())]
    return [((rank + distance) % size, (rank - distance) % size) for distance in distances]


class TcpLowering:
    """For one program. A wait completes all that was posted before it, whatever requests it names."""

    def __init__(
        self, endpoint: Endpoint, ranks: Sequence[int], rank: int, streams: int, buffers: Mapping[str, HostBuffer]
    ) -> None:
        self._endpoint, self._ranks, self._rank, self._streams = endpoint, ranks, rank, streams
        self._buffers = buffers
        self._pool = max((buffer.pool for buffer in buffers.values()), default=1)
        self._sends: list[tuple[int, View]] = []
        self._receives: list[tuple[int, View]] = []
        self._deferred = False
        self._known: dict[tuple[Messages, Messages], Call] = {}

    def lower(self, program: Program, sync: str) -> Lowered[Call]:
        lowered = Lowered.of(program, sync, self.call)
        if self._sends or self._receives:
            raise Unsupported("tcp moves messages at waits: the program ends with messages that nobody waits for")
        steps, before = (tuple(one for one in part if one is not POSTED) for part in (lowered.steps, lowered.before))
        return replace(lowered, steps=steps, before=before)

    def call(self, step: Step) -> Call:
        match step:
            case Isend(data, peer, _):
                self._sends.append((peer, data))
                return POSTED
            case Irecv(data, peer, _):
                self._receives.append((peer, data))
                return POSTED
            case Send(data, peer):
                self._sends.append((peer, data))
                self._deferred = bool(self._receives)  # the peer may be sending too: both go on at the next wait
                return POSTED if self._deferred else self._wait()
            case Recv(data, peer):
                self._receives.append((peer, data))
                return self._wait()
            case WaitAll():
                return self._wait()
            case _ if self._deferred:
                raise Unsupported(f"tcp can't lower a {type(step).__name__} between a send and the wait it needs")
            case Barrier():
                return self._barrier()
            case Copy(source, target):
                return Call(np.copyto, (self._rotating(self._words, target), self._rotating(self._words, source)))
            case _:
                raise Unsupported(NO_COLLECTIVES)

    def _wait(self) -> Call:
        key = tuple(self._sends), tuple(self._receives)
        self._sends, self._receives, self._deferred = [], [], False
        if key not in self._known:
            self._known[key] = self._moving([self._traffic(*key, copy) for copy in range(self._pool)])
        return self._known[key]

    def _moving(self, copies: list[Traffic]) -> Call:
        """The cheapest way to move it: one flow alone needs neither a thread nor an order."""
        one = copies[0]
        if len(one.sends) + len(one.receives) > 1:
            crew = self._endpoint.crew
            crew.hire(0 if one.small else len(one.sends) + len(one.receives) - 1)
            return Call(crew.move_small if one.small else crew.move, (Rotating(tuple(copies)),))
        flows = [(*traffic.sends, *traffic.receives)[0] for traffic in copies] if one.sends or one.receives else []
        if not flows:
            return POSTED
        connection, parts = flows[0].connection, [flow.parts for flow in flows]
        if len(parts[0]) == 1 and len(parts[0][0].views) == 1:
            alone: Callable[..., None] = connection.send_one if one.sends else connection.receive_one
            return Call(alone, (Rotating(tuple(part[0].views[0] for part in parts)),))
        return Call(connection.send if one.sends else connection.receive, (Rotating(tuple(parts)),))

    def _traffic(self, sends: Messages, receives: Messages, copy: int) -> Traffic:
        return Traffic(self._flows(sends, copy), self._flows(receives, copy))

    def _flows(self, messages: Messages, copy: int) -> tuple[Flow, ...]:
        """One a connection, its parts in the order of the messages."""
        views: dict[Key, list[memoryview]] = {}
        for peer, data in messages:
            for stream, part in enumerate(cut(memoryview(self._words(data, copy)).cast("B"), self._streams)):
                if len(part):
                    views.setdefault((self._ranks[peer], stream), []).append(part)
        return tuple(Flow(self._endpoint[key], batches(one)) for key, one in views.items())

    def _barrier(self) -> Call:
        partners = barrier_partners(self._rank, len(self._ranks))
        if not partners:
            return POSTED
        ends = [tuple(self._endpoint[self._ranks[rank], BARRIER] for rank in pair) for pair in partners]
        return Call(_meet, (ends, memoryview(bytearray(1))))

    def _words(self, view: View, copy: int) -> Any:
        stop = None if view.count is None else view.offset + view.count
        return self._buffers[view.buffer].words(view.slot, copy)[view.offset : stop]

    def _rotating(self, value: Callable[[View, int], Any], view: View) -> Rotating:
        return Rotating(tuple(value(view, copy) for copy in range(self._pool)))


def cut(view: memoryview, parts: int) -> list[memoryview]:
    """Contiguous parts whose sizes differ by a byte at most; empty ones where there are more parts than bytes."""
    edges = [len(view) * index // parts for index in range(parts + 1)]
    return [view[start:stop] for start, stop in pairwise(edges)]


def _meet(rounds: Iterable[tuple[Connection, Connection]], byte: memoryview) -> None:
    for onward, back in rounds:
        onward.send_one(byte)
        back.receive_one(byte)
