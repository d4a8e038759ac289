"""Steps as calls on connections.

A message is cut into one part per stream. Part i travels on connection i, after the parts of earlier messages, so that
messages need no header: the programs of both ends name the same messages in the same order. Messages that are pending
at a wait and go the same way over the same connection are passed to the kernel in one sendmsg or recvmsg (each keeps
its own memory; the wire carries the same bytes). A blocking message alone is one system call per stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from commbench.buffers.memory import HostBuffer, rotation_pool
from commbench.core.errors import Unsupported
from commbench.core.program import Barrier, Copy, Irecv, Isend, Program, Recv, Send, Step, View, WaitAll
from commbench.engines.lowered import NO_CALL, Call, Lowered, Rotating
from commbench.world.peer_listener import Key

from .connection import Connection, PendingTransfers, Transfer, io_vectors
from .endpoint import BARRIER, Endpoint

NO_COLLECTIVES = "tcp is point to point only: sockets have no collectives"
MESSAGES = (Send, Recv, Isend, Irecv)
Messages = tuple[tuple[int, View], ...]  # peer, data


def peers_of(program: Program) -> list[int]:
    """All ranks that the program names; raises Unsupported if it has steps other than messages and barriers."""
    steps = (*program.steps, *program.reset)
    if any(not isinstance(step, (*MESSAGES, WaitAll, Barrier, Copy)) for step in steps):
        raise Unsupported(NO_COLLECTIVES)
    return sorted({step.peer for step in steps if isinstance(step, MESSAGES)})


def barrier_partners(rank: int, size: int) -> list[tuple[int, int]]:
    """Receiver and sender of a byte in each round (dissemination barrier; Hensgen, Finkel, Manber 1988)."""
    distances = [1 << power for power in range((size - 1).bit_length())]
    return [((rank + distance) % size, (rank - distance) % size) for distance in distances]


class TcpLowering:
    """For one program. A wait completes all messages that were posted before it, whichever requests it names."""

    def __init__(
        self, endpoint: Endpoint, ranks: Sequence[int], rank: int, streams: int, buffers: Mapping[str, HostBuffer]
    ) -> None:
        self._endpoint, self._ranks, self._rank, self._streams = endpoint, ranks, rank, streams
        self._buffers = buffers
        self._pool = rotation_pool(buffers)
        self._sends: list[tuple[int, View]] = []
        self._receives: list[tuple[int, View]] = []
        self._send_deferred = False
        self._waits: dict[tuple[Messages, Messages], Call] = {}

    def lower(self, program: Program, sync: str) -> Lowered[Call]:
        lowered = Lowered.of(program, sync, self.call)
        if self._sends or self._receives:
            raise Unsupported("tcp moves messages at waits: the program ends with messages that nobody waits for")
        steps, before = (
            tuple(call for call in part if call is not NO_CALL) for part in (lowered.steps, lowered.before)
        )
        return replace(lowered, steps=steps, before=before)

    def call(self, step: Step) -> Call:
        match step:
            case Isend(data, peer, _):
                self._sends.append((peer, data))
                return NO_CALL
            case Irecv(data, peer, _):
                self._receives.append((peer, data))
                return NO_CALL
            case Send(data, peer):
                self._sends.append((peer, data))
                self._send_deferred = bool(self._receives)  # the peer may be sending too: complete both at the wait
                return NO_CALL if self._send_deferred else self._wait()
            case Recv(data, peer):
                self._receives.append((peer, data))
                return self._wait()
            case WaitAll():
                return self._wait()
            case _ if self._send_deferred:
                raise Unsupported(f"tcp can't lower a {type(step).__name__} between a send and the wait that it needs")
            case Barrier():
                return self._barrier()
            case Copy(source, target):
                return Call(np.copyto, (self._rotating_elements(target), self._rotating_elements(source)))
            case _:
                raise Unsupported(NO_COLLECTIVES)

    def _wait(self) -> Call:
        messages = tuple(self._sends), tuple(self._receives)
        self._sends, self._receives, self._send_deferred = [], [], False
        if messages not in self._waits:
            sends, receives = messages
            copies = [
                PendingTransfers(self._transfers(sends, copy), self._transfers(receives, copy))
                for copy in range(self._pool)
            ]
            self._waits[messages] = self._cheapest_call(copies)
        return self._waits[messages]

    def _cheapest_call(self, copies: list[PendingTransfers]) -> Call:
        """A single transfer needs neither a thread nor an order, and a single view no list. `copies` are all alike."""
        first = copies[0]
        transfers = len(first.sends) + len(first.receives)
        if transfers == 0:
            return NO_CALL
        if transfers > 1:
            threads = self._endpoint.threads
            threads.reserve(0 if first.small else transfers - 1)
            return Call(threads.move_small if first.small else threads.move, (Rotating(tuple(copies)),))
        connection = (*first.sends, *first.receives)[0].connection
        vectors = [(*pending.sends, *pending.receives)[0].vectors for pending in copies]
        if len(vectors[0]) == 1 and len(vectors[0][0].views) == 1:
            move_one: Callable[..., None] = connection.send_one if first.sends else connection.receive_one
            return Call(move_one, (Rotating(tuple(copy[0].views[0] for copy in vectors)),))
        return Call(connection.send if first.sends else connection.receive, (Rotating(tuple(vectors)),))

    def _transfers(self, messages: Messages, copy: int) -> tuple[Transfer, ...]:
        """One per connection, its parts in the order of the messages."""
        views: dict[Key, list[memoryview]] = {}
        for peer, data in messages:
            for stream, part in enumerate(cut(memoryview(self._elements(data, copy)).cast("B"), self._streams)):
                if len(part):
                    views.setdefault((self._ranks[peer], stream), []).append(part)
        return tuple(Transfer(self._endpoint[key], io_vectors(parts)) for key, parts in views.items())

    def _barrier(self) -> Call:
        partners = barrier_partners(self._rank, len(self._ranks))
        if not partners:
            return NO_CALL
        rounds = [tuple(self._endpoint[self._ranks[peer], BARRIER] for peer in pair) for pair in partners]
        return Call(_disseminate, (rounds, memoryview(bytearray(1))))

    def _elements(self, view: View, copy: int) -> Any:
        return self._buffers[view.buffer].words(view.slot, copy)[view.elements]

    def _rotating_elements(self, view: View) -> Rotating:
        return Rotating(tuple(self._elements(view, copy) for copy in range(self._pool)))


def cut(view: memoryview, parts: int) -> list[memoryview]:
    """Contiguous parts whose sizes differ by one byte at most; some are empty if there are fewer bytes than parts."""
    edges = [len(view) * index // parts for index in range(parts + 1)]
    return [view[start:stop] for start, stop in pairwise(edges)]


def _disseminate(rounds: Iterable[tuple[Connection, Connection]], byte: memoryview) -> None:
    for receiver, sender in rounds:
        receiver.send_one(byte)
        sender.receive_one(byte)
