"""Every rank sends a message to and receives one from every other rank, all at once and without blocking."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from commbench.core.case import Case, Shape
from commbench.core.program import BufferSpec, Irecv, Isend, Pattern, Program, View, WaitAll

from .blocks import SHARED, joined_blocks

Posted = tuple[tuple[Irecv, ...], tuple[Isend, ...]]


@dataclass(frozen=True)
class Exchange:
    name: ClassVar[str] = "exchange"
    axes: ClassVar[tuple[str, ...]] = ()
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 2
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 1

    def program(self, case: Case, rank: int, size: int) -> Program:
        """A slot for each peer in rank order; the first message goes to the next rank, or all would meet at rank 0."""
        if size == 1:
            return Program()
        buffers = tuple(BufferSpec(name, case.count, case.dtype, size - 1) for name in ("send", "recv"))
        (receives_below, sends_below), (receives_above, sends_above) = _posted(size, 0), _posted(size, 1)
        receives = (*receives_below[:rank], *receives_above[rank + 1 :])
        sends = (*sends_above[rank + 1 :], *sends_below[:rank])
        return Program(buffers, (*receives, *sends, WaitAll(tuple(range(2 * (size - 1))))))

    def shape(self, case: Case, size: int) -> Shape:
        """What one rank sends; as much comes in."""
        peers = max(size - 1, 1)
        return Shape(peers, peers * case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """1: every byte leaves a rank once and enters one once, as in nccl-tests src/sendrecv.cu."""
        return 1.0 if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        to = (rank * size + peer for peer in range(size) if peer != rank)
        return joined_blocks(SHARED, salt, case.count, to) if name == "send" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        of = (peer * size + rank for peer in range(size) if peer != rank)
        return joined_blocks(SHARED, salt, case.count, of) if name == "recv" else None


@lru_cache(maxsize=8)
def _posted(size: int, skipped: int) -> Posted:
    """One receive and one send for each peer, whose slot is its rank less the ranks skipped before it (oneself).

    Shared by all ranks: a plan for thousands of ranks makes all their programs.
    """
    slots = [(peer, peer - skipped) for peer in range(size)]
    receives = tuple(Irecv(View("recv", slot), peer, slot) for peer, slot in slots)
    return receives, tuple(Isend(View("send", slot), peer, size - 1 + slot) for peer, slot in slots)
