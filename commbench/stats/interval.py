"""A value with its confidence interval, and how it is written: `0.165 ±3%`, `?162 -20 +1145%`,
`?1.50 (n=2)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

CERTAIN = 0.05  # relative distance of the farther end, up to which a value may be quoted as it is
ORDER_OF_MAGNITUDE = 0.30  # and up to which it says more than its order of magnitude
DIGITS = 9  # of such a distance: more would be rounding errors
MOST_PERCENT = 9999  # that are written
SYMMETRIC = 2.0  # largest ratio of the distances of both ends that are written as one
NEAR = 0.01  # a nearer end counts as one at this distance: nobody decides by less

Certainty = Literal["", "~", "?"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value that lies between `low` and `high` with the probability `level`.

    Without an interval both ends are infinite and `level` is None. The value is the middle of `n`
    repetitions, visits or launches, as `of` says. `is_disturbed`: something else had the processor
    while it was measured, so a narrow interval may be that of a wrong value.
    """

    value: float
    low: float = -math.inf
    high: float = math.inf
    level: float | None = None
    n: int = 1
    of: str = ""
    is_disturbed: bool = False

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends as numbers of a table or a figure: NaN without an interval."""
        return (self.low, self.high) if self.is_known else (math.nan, math.nan)

    @property
    def half_width(self) -> float:
        """Half of its length, relative to the value; infinite without an interval."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf

    @property
    def sides(self) -> tuple[float, float]:
        """How far each end is from the value, relative to it."""
        if not self.value:
            return (0.0, 0.0) if self.low == self.high == 0 else (math.inf, math.inf)
        ends = (self.value - self.low, self.high - self.value)
        below, above = (round(end / abs(self.value), DIGITS) + 0.0 for end in ends)  # no -0.0
        return below, above

    @property
    def _farther(self) -> float:
        """How far the farther end is, as it is written."""
        return round(max(self.sides), 2)

    @property
    def is_narrow(self) -> bool:
        """Whether both ends are as near as those of a value that may be quoted as it is."""
        return self._farther <= CERTAIN

    @property
    def certainty(self) -> Certainty:
        """Empty up to 5 %, `~` up to 30 % and where it is disturbed, `?` beyond and without an
        interval."""
        if self.is_narrow:
            return "~" if self.is_disturbed else ""
        return "~" if self._farther <= ORDER_OF_MAGNITUDE else "?"

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __add__(self, other: Interval) -> Interval:
        return of_formula(lambda first, second: first + second, self, other)

    def __sub__(self, other: Interval) -> Interval:
        return of_formula(lambda first, second: first - second, self, other)

    def __rmul__(self, factor: float) -> Interval:
        return of_formula(lambda value: factor * value, self)

    def width_text(self) -> str:
        """`±3%`, `-20 +1145%`, or `(n=2)` where there is no interval."""
        if not self.is_known:
            return f"(n={self.n})"
        below, above = self.sides
        if max(below, above) <= SYMMETRIC * max(NEAR, min(below, above)):
            return f"±{_percent(max(below, above))}%"
        # the value may lie outside: the ratio of medians does of an interval of paired ratios
        return f"-{_percent(max(below, 0.0))} +{_percent(max(above, 0.0))}%"

    def value_text(self, number: Callable[[float], str]) -> str:
        """The value behind its certainty: `0.165`, `~0.17`, `?162`."""
        return f"{self.certainty}{number(self.value)}"

    def text(self, number: Callable[[float], str]) -> str:
        """The value and its width: `0.165 ±3%`, `?162 -20 +1145%`."""
        return f"{self.value_text(number)} {self.width_text()}"

    def ends_text(self, number: Callable[[float], str]) -> str:
        """The value and both ends, for a difference, whose width relative to it says nothing:
        `2 us (-1 us .. 5 us)`."""
        if not self.is_known:
            return f"{number(self.value)} (no interval)"
        return f"{number(self.value)} ({number(self.low)} .. {number(self.high)})"


def of_formula(formula: Callable[..., float], *inputs: Interval) -> Interval:
    """The value of a formula, and its least and largest value while each input is in its interval.

    The formula must rise or fall with each input. The level is the lowest of the inputs.
    """
    value = formula(*(each.value for each in inputs))
    unknown = Interval(
        value,
        n=min(each.n for each in inputs),
        of=inputs[0].of,
        is_disturbed=any(each.is_disturbed for each in inputs),
    )
    if not all(each.is_known for each in inputs):
        return unknown
    corners = [formula(*ends) for ends in product(*(each.ends for each in inputs))]
    levels = [each.level for each in inputs if each.level is not None]
    level = min(levels) if len(levels) == len(inputs) else None
    return replace(unknown, low=min(corners), high=max(corners), level=level)


def widest(value: float, intervals: Sequence[Interval]) -> Interval:
    """The value between the outermost ends of known intervals and values of launches."""
    is_disturbed = any(each.is_disturbed for each in intervals)
    unknown = Interval(value, n=len(intervals), of="launches", is_disturbed=is_disturbed)
    known = [each for each in intervals if each.is_known]
    if not known:
        return unknown
    ends = [end for each in known for end in each.ends]
    values = [each.value for each in intervals]
    level = min((each.level for each in known if each.level is not None), default=None)
    return replace(unknown, low=min(*ends, *values), high=max(*ends, *values), level=level)


def _percent(share: float) -> str:
    """At least one digit that is not zero, rounded up below 1 %."""
    percent = 100 * share
    if percent > MOST_PERCENT:
        return f">{MOST_PERCENT}"
    return f"{percent:.0f}" if percent >= 1 or not percent else f"{math.ceil(10 * percent) / 10:g}"
