"""A window of non-blocking messages in both directions at once."""

from __future__ import annotations

from commbench.core.case import Shape
from commbench.core.layout import Pair
from commbench.core.program import Program
from commbench.core.variables import Case

from .point_to_point import PointToPoint, window_of, windows_both_ways


class P2PBibandwidth(PointToPoint):
    name = "p2p_bibandwidth"

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        """Both ranks do the same; a rank paired with itself has only one direction."""
        return windows_both_ways(case, peer=sum(pair) - rank)

    def shape(self, case: Case, size: int) -> Shape:
        """A sample is both directions of one pair."""
        first, second = case.pairs[0]
        messages = window_of(case) * (1 if first == second else 2)
        words = "window / messages in both directions"
        return Shape(
            messages, messages * case.message_bytes, "initiator", words, single=messages == 1
        )

    def bus_factor(self, case: Case, size: int) -> float | None:
        """1/2: algbw is the sum of both directions, 2 W S / t, and a link's limit holds for each
        (osu_bibw)."""
        return 0.5
