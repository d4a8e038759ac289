"""The times of a replayed workload: of its step, and of each of its operations alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commbench.core.states import Row, case_status
from commbench.core.units import format_seconds

from .named_workload import operation_number
from .scaling import ScaledWorkload
from .workload import first_alike


@dataclass(frozen=True)
class Seconds:
    """A time, or a difference of times, of one step, with its interval."""

    value: float
    low: float
    high: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.value + other.value, self.low + other.low, self.high + other.high)

    def __sub__(self, other: Seconds) -> Seconds:
        """The interval holds the difference wherever both times are in theirs."""
        return Seconds(self.value - other.value, self.low - other.high, self.high - other.low)

    def times(self, factor: float) -> Seconds:
        return Seconds(self.value * factor, self.low * factor, self.high * factor)

    def __str__(self) -> str:
        if not math.isfinite(self.high - self.low):
            return f"{_signed(self.value)} (no interval)"
        value, low, high = map(_signed, (self.value, self.low, self.high))
        return f"{value} ({low} .. {high})"


def _signed(seconds: float) -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


ZERO = Seconds(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ReplayTimes:
    """Times of `part` of a workload in one layout on one backend. `sequence`: by Case.gaps; `late`:
    with a late rank, by Case.late and Case.gaps; `alone`: by the number of the operation; `limit`:
    likewise, where the limit of its link is known."""

    part: ScaledWorkload
    sequence: Mapping[str, Seconds]
    late: Mapping[tuple[str, str], Seconds]
    alone: Mapping[int, Seconds]
    limit: Mapping[int, Seconds]

    @property
    def alone_sum(self) -> Seconds | None:
        """All operations of a step one after another, of the rank for which that takes longest;
        None if one was not measured."""
        return self._busiest(self.alone)

    @property
    def limit_sum(self) -> Seconds | None:
        return self._busiest(self.limit)

    def _busiest(self, times: Mapping[int, Seconds]) -> Seconds | None:
        needed = {number for calls in self.part.step_calls for number in calls}
        if not needed <= set(times):
            return None
        sums = [
            sum((times[number].times(count) for number, count in calls.items()), ZERO)
            for calls in self.part.step_calls
        ]
        return max(sums, key=lambda total: total.value, default=None)

    def __str__(self) -> str:
        plain = self.sequence.get("none")
        alone = self.alone_sum
        step = "the step was not measured" if plain is None else f"a step takes {plain}"
        return step if alone is None else f"{step}, its operations one after another {alone}"


def replay_times(rows: Iterable[Row], part: ScaledWorkload) -> ReplayTimes:
    """Of the rows of a workload in one layout on one backend. An operation that was not measured
    alone has the time of the one that is like it."""
    sequence = {}
    late = {}
    measured: dict[int, Row] = {}
    for row in rows:
        number = operation_number(row["workload"])
        if number is not None:
            measured[number] = row
        elif (seconds := measured_seconds(row)) is not None:
            gaps = row["gaps"] or "none"
            if row["late"] is None:
                sequence[gaps] = seconds
            else:
                late[row["late"], gaps] = seconds
    alone = {}
    limit = {}
    for number, first in first_alike(part.whole).items():
        seconds = measured_seconds(measured[first]) if first in measured else None
        if seconds is None:
            continue
        alone[number] = seconds
        efficiency = measured[first]["efficiency"]
        if efficiency is not None:
            limit[number] = seconds.times(min(float(efficiency), 1.0))
    return ReplayTimes(part, sequence, late, alone, limit)


def measured_seconds(row: Row) -> Seconds | None:
    """The median of a row with its interval; None if it has no such numbers."""
    if case_status(row) != "ok" or row["median_s"] is None:
        return None
    median_s = float(row["median_s"])
    low_s = row["ci_low_s"]
    high_s = row["ci_high_s"]
    if low_s is None or high_s is None:
        return Seconds(median_s, 0.0, float("inf"))
    return Seconds(median_s, float(low_s), float(high_s))
