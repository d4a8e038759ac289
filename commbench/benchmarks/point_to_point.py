"""What the operations between pairs of ranks have in common."""

from __future__ import annotations

from typing import ClassVar

from commbench.core.case import Case
from commbench.core.program import Program

Pair = tuple[int, int]


class PointToPoint:
    """Messages between the two ranks of each pair; all other ranks are idle."""

    axes: ClassVar[tuple[str, ...]] = ("pair", "window")
    cache: ClassVar[str] = "rotate"
    min_ranks: ClassVar[int] = 2
    self_synchronising: ClassVar[bool] = True

    def blocks(self, size: int) -> int:
        return 1

    def program(self, case: Case, rank: int, size: int) -> Program:
        pair = case.pair_of(rank)
        return Program() if pair is None else self.pair_program(case, rank, pair)

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        """The program of a rank of this pair, which may be a rank with itself."""
        raise NotImplementedError


def window_of(case: Case) -> int:
    return case.window or 1
