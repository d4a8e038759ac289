"""Whether the two directions of each pair are equally fast."""

from __future__ import annotations

from typing import NamedTuple

from commbench.core.layout import Pair, pairs_text
from commbench.core.texts import some_of
from commbench.core.units import format_factor, plural
from commbench.stats.interval import Interval

from .matrix import Matrix

SYMMETRIC = 0.01  # a smaller difference of two directions is none
MOST_NAMED = 3


class Directions(NamedTuple):
    """The slower direction of a pair, both times, and by how much it takes longer: 0.01 is 1 %."""

    slower: Pair
    slower_s: Interval
    faster_s: Interval

    @property
    def difference(self) -> float:
        return self.slower_s.value / self.faster_s.value - 1

    @property
    def is_symmetric(self) -> bool:
        return self.difference <= SYMMETRIC

    @property
    def is_apart(self) -> bool:
        """Whether the difference is neither small nor within the confidence intervals."""
        return not (self.is_symmetric or self.slower_s.low <= self.faster_s.high)


def directions(matrix: Matrix) -> list[Directions]:
    """The pairs of two ranks whose directions were both measured, the most different first."""
    times = {pair: time for pair, time in matrix.medians.items() if time.value}
    both = []
    for pair, there in times.items():
        back = times.get(pair[::-1])
        if pair < pair[::-1] and back is not None:
            is_slower = there.value >= back.value
            both.append(
                Directions(pair, there, back) if is_slower else Directions(pair[::-1], back, there)
            )
    return sorted(both, key=lambda each: -each.difference)


def symmetry_text(matrix: Matrix) -> str:
    """`6 of 6 pairs symmetric within 1 %`, or which are not and by how much, and how many are
    undecided; empty where no pair has both directions."""
    both = directions(matrix)
    if not both:
        return ""
    count = plural(len(both), "pair", "pairs")
    alike = sum(each.is_symmetric for each in both)
    apart = [each for each in both if each.is_apart]
    undecided = [each for each in both if not (each.is_symmetric or each.is_apart)]
    parts = []
    if apart:
        named = some_of([_apart_text(matrix, each) for each in apart], MOST_NAMED)
        parts.append(f"{len(apart)} of {count} not symmetric: {'; '.join(named)}")
    if alike:
        parts.append(f"{alike} of {count} symmetric within {_percent(SYMMETRIC)}")
    if undecided:
        most = _percent(undecided[0].difference)
        parts.append(f"{len(undecided)} of {count} undecided (differences up to {most})")
    return "; ".join(parts)


def _apart_text(matrix: Matrix, each: Directions) -> str:
    """`2-0 0.402 GB/s, 0-2 0.940 GB/s (2.34 x)`."""
    slower = each.slower
    faster = slower[::-1]
    return (
        f"{pairs_text([slower])} {matrix.number_with_unit(slower)},"
        f" {pairs_text([faster])} {matrix.number_with_unit(faster)}"
        f" ({format_factor(1 + each.difference)})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
