"""A published value beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import get_args

from commbench.analysis.pairs.symmetry import SYMMETRIC
from commbench.results.intervals import interval_of
from commbench.results.row import Row
from commbench.stats.interval import Certainty, Interval

from .reference import UNITS, Point, Reference, fact

MARKS: tuple[Certainty, ...] = get_args(Certainty)  # the least certain last
# columns whose interval is that of the time
TIMED = ("median_s", "algbw_gb_per_s", "busbw_gb_per_s", "message_rate_per_s", "efficiency")


def least(values: Iterable[Interval]) -> Interval:
    """The least that is certain: of which the upper end is lowest."""
    return min(values, key=lambda each: (each.high, each.value))


def largest(values: Iterable[Interval]) -> Interval:
    """The largest that is certain: of which the lower end is highest."""
    return max(values, key=lambda each: (each.low, each.value))


def middle(values: Sequence[Interval]) -> Interval:
    """A single value, or the median of several, which has no interval: their range says more."""
    return values[0] if len(values) == 1 else Interval(median(each.value for each in values))


STATISTICS: Mapping[str, Callable[[Sequence[Interval]], Interval]] = {
    "min": least,
    "median": middle,
    "max": largest,
}


@dataclass(frozen=True)
class Compared:
    """A published value and ours, in the document's unit: `values` has one of each alike case.

    `message_bytes` is ours; `name` tells ours from others beside the same value, and `stand_in`
    says what ours is where it is not what the document's name says.
    """

    reference: Reference
    point: Point
    message_bytes: int | None
    name: str
    values: tuple[Interval, ...]
    stand_in: str = ""

    @property
    def ours(self) -> Interval:
        return STATISTICS[self.reference.statistic or "median"](self.values)

    @property
    def least_certain(self) -> Interval | None:
        """What says how certain ours is: itself, or of the cases in whose middle it is the least
        certain one; None of a quantity without intervals."""
        known = [each for each in ((self.ours,) if self.ours.of else self.values) if each.of]
        return max(known, key=lambda each: MARKS.index(each.certainty), default=None)

    @property
    def asymmetric(self) -> int:
        """How many ratios of two directions are neither small nor within their intervals."""
        return sum(each.low > 1 and each.value > 1 + SYMMETRIC for each in self.values)

    @property
    def ratio(self) -> float:
        """Ours over the published value; over the nearer end of a range, 1 within it, also where
        one bound is published and met."""
        return self.point.beyond(self.ours.value)

    @property
    def answer(self) -> str | None:
        """`within` a published bound, `above` or `below` it; `undecided` where the intervals hold
        the bound, or are not known. None for other values."""
        point = self.point
        if math.isfinite(point.high - point.low):
            return None
        judged = self.values if len(self.values) > 1 else (self.ours,)
        low = min(each.low for each in judged)
        high = max(each.high for each in judged)
        if point.low <= low and high <= point.high:
            return "within"
        if low > point.high:
            return "above"
        return "below" if high < point.low else "undecided"


def stand_in(reference: Reference, row: Row, libraries: Iterable[str] = ()) -> str:
    """`shared memory`, `2 pairs, one node`; empty for what the document had. `where` begins with
    that."""
    if not reference.fits_first(row):
        return str(row.label or row.transport or "").replace("_", " ")
    parts = [*libraries]
    if reference.ranks not in (None, row.world_size):
        pairs = str(row.pair or "").split()
        parts.append(f"{len(pairs)} pairs" if len(pairs) > 1 else f"{row.world_size} ranks")
    if reference.span == "between" != fact(row, "span"):
        parts.append("one node")
    return ", ".join(parts)


def value_in_unit(row: Row, column: str, unit: str) -> Interval:
    """A column of a row in that unit; without an interval where its interval is not the time's."""
    measured = interval_of(row, column) if column in TIMED else None
    return 1 / UNITS[unit] * (measured or Interval(fact(row, column)))
