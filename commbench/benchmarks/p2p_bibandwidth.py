"""A window of non-blocking messages in both directions at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core.case import Case, Shape
from commbench.core.payload import joined_blocks
from commbench.core.program import BufferSpec, Irecv, Isend, Pattern, Program, View, WaitAll

from .point_to_point import Pair, PointToPoint, window_of


@dataclass(frozen=True)
class P2PBibandwidth(PointToPoint):
    name: ClassVar[str] = "p2p_bibandwidth"

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        """Both ranks do the same; a rank paired with itself has only one direction."""
        peer, window = sum(pair) - rank, window_of(case)
        buffers = tuple(BufferSpec(name, case.count, case.dtype, window) for name in ("send", "recv"))
        receives = (Irecv(View("recv", slot), peer, slot) for slot in range(window))
        sends = (Isend(View("send", slot), peer, window + slot) for slot in range(window))
        return Program(buffers, (*receives, *sends, WaitAll(tuple(range(2 * window)))))

    def shape(self, case: Case, size: int) -> Shape:
        """Both directions of one pair."""
        first, second = case.pairs[0]
        messages = window_of(case) * (1 if first == second else 2)
        return Shape(messages, messages * case.message_bytes, "initiator")

    def bus_factor(self, size: int) -> float | None:
        """1/2: algbw is the sum of both directions, 2 W S / t, and a link's limit holds for each (osu_bibw)."""
        return 0.5

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return joined_blocks(rank, salt, case.count, range(window_of(case))) if name == "send" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        pair = case.pair_of(rank)
        if pair is None or name != "recv":
            return None
        return joined_blocks(sum(pair) - rank, salt, case.count, range(window_of(case)))
