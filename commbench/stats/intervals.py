"""Numbers that follow from several times, with the interval that follows from theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from commbench.core.states import Row, case_status
from commbench.core.units import format_number


@dataclass(frozen=True)
class Bounded:
    """A number with its interval. `is_most`: the number itself is only known to be at most that."""

    value: float
    low: float
    high: float
    is_most: bool = False

    def text(self, factor: float = 1.0) -> str:
        """`91.2 (88.0 .. 93.1)`, of the number times a factor."""
        value, low, high = (
            format_number(factor * each) for each in (self.value, self.low, self.high)
        )
        return f"{'<= ' if self.is_most else ''}{value} ({low} .. {high})"


def bounded(formula: Callable[..., float], *times: Bounded, is_most: bool = False) -> Bounded:
    """The value of a formula, and its least and largest where each time is in its interval: it
    rises or falls with each of them."""
    corners = [formula(*ends) for ends in product(*((time.low, time.high) for time in times))]
    value = formula(*(time.value for time in times))
    return Bounded(value, min(corners), max(corners), is_most)


def quotient(above: float, below: float) -> float:
    return above / below


def median_of_row(row: Row) -> Bounded | None:
    """The median with its interval; None without one."""
    if case_status(row) != "ok" or not row["median_s"] or row["ci_low_s"] is None:
        return None
    return Bounded(float(row["median_s"]), float(row["ci_low_s"]), float(row["ci_high_s"]))
