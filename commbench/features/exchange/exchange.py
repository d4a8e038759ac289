"""Every rank sends a message to and receives one from every other rank, all at once and without
blocking."""

from __future__ import annotations

from functools import lru_cache

from commbench.benchmarks.collective import Collective
from commbench.core.case import Shape
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import (
    BufferSpec,
    Copy,
    Pattern,
    Program,
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.core.variables import Case

ONE = "one"  # the send buffer of all messages with buffers=shared


class Exchange(Collective):
    """An all-to-all of point-to-point messages. Each buffer has a slot per peer, in rank order.

    buffers=shared: each message is written to one send buffer while those before it may still be on
    their way, which MPI forbids (MPI 4.1, 3.7.2): the contents that arrive are undefined.
    """

    name = "exchange"
    axes = ("buffers",)
    min_ranks = 2

    def program(self, case: Case, rank: int, size: int) -> Program:
        """The first message goes to the next rank: if all began with rank 0, its link would be the
        bottleneck."""
        if size == 1:
            return Program()
        if case.buffers == "shared":
            return Program(self.buffers(case, rank, size), _steps_of_one_buffer(rank, size))
        receives_below, sends_below = _calls_by_peer(size, 0)
        receives_above, sends_above = _calls_by_peer(size, 1)
        receives = (*receives_below[:rank], *receives_above[rank + 1 :])
        sends = (*sends_above[rank + 1 :], *sends_below[:rank])
        buffers = self.buffers(case, rank, size)
        return Program(buffers, (*receives, *sends, WaitAll(tuple(range(2 * (size - 1))))))

    def buffers(self, case: Case, rank: int, size: int) -> tuple[BufferSpec, ...]:
        each = tuple(
            BufferSpec(name, case.elements, case.dtype, size - 1) for name in ("send", "recv")
        )
        is_shared = case.buffers == "shared"
        return (*each, BufferSpec(ONE, case.elements, case.dtype)) if is_shared else each

    def shape(self, case: Case, size: int) -> Shape:
        """The messages that one rank sends; it receives as many."""
        peers = max(size - 1, 1)
        words = "exchange / messages that a rank sends"
        return Shape(peers, peers * case.message_bytes, "max_over_ranks", words, single=peers == 1)

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        blocks = (rank * size + peer for peer in range(size) if peer != rank)
        return joined_blocks(SHARED, salt, case.elements, blocks) if name == "send" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        blocks = (peer * size + rank for peer in range(size) if peer != rank)
        return joined_blocks(SHARED, salt, case.elements, blocks) if name == "recv" else None


def _steps_of_one_buffer(rank: int, size: int) -> tuple[Step, ...]:
    """The contents for a peer, the send and the receive, peer by peer."""
    steps = list[Step]()
    for slot, peer in enumerate(peer for peer in range(size) if peer != rank):
        steps += [
            Copy(View("send", slot), View(ONE)),
            Start(Send(View(ONE), peer), 2 * slot),
            Start(Recv(View("recv", slot), peer), 2 * slot + 1),
        ]
    return (*steps, WaitAll(tuple(range(2 * (size - 1)))))


@lru_cache(maxsize=8)
def _calls_by_peer(size: int, skipped: int) -> tuple[tuple[Start, ...], tuple[Start, ...]]:
    """A receive and a send per peer. A rank has no slot for itself: `skipped` is 1 for the peers
    above it, else 0.

    Cached and shared by all ranks, because a simulated world has the programs of all of them.
    """
    slots = [(peer, peer - skipped) for peer in range(size)]
    receives = tuple(Start(Recv(View("recv", slot), peer), slot) for peer, slot in slots)
    return receives, tuple(
        Start(Send(View("send", slot), peer), size - 1 + slot) for peer, slot in slots
    )
