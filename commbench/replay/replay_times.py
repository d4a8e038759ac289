"""The times of a replayed workload: of its step, and of each of its operations alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commbench.core.states import Row
from commbench.core.units import format_seconds
from commbench.results.intervals import interval_of
from commbench.stats.interval import Interval

from .named_workload import operation_number
from .scaling import ScaledWorkload
from .workload import first_alike

ZERO = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ReplayTimes:
    """Times of `part` of a workload in one layout on one backend. `sequence`: by Case.gaps; `late`:
    with a late rank, by Case.late and Case.gaps; `alone`: by the number of the operation; `limit`:
    likewise, where the limit of its link is known."""

    part: ScaledWorkload
    sequence: Mapping[str, Interval]
    late: Mapping[tuple[str, str], Interval]
    alone: Mapping[int, Interval]
    limit: Mapping[int, Interval]

    @property
    def alone_sum(self) -> Interval | None:
        """All operations of a step one after another, of the rank for which that takes longest;
        None if one was not measured."""
        return self._busiest(self.alone)

    @property
    def limit_sum(self) -> Interval | None:
        return self._busiest(self.limit)

    def _busiest(self, times: Mapping[int, Interval]) -> Interval | None:
        needed = {number for calls in self.part.step_calls for number in calls}
        if not needed <= set(times):
            return None
        sums = [
            sum((count * times[number] for number, count in calls.items()), ZERO)
            for calls in self.part.step_calls
        ]
        return max(sums, key=lambda total: total.value, default=None)

    def __str__(self) -> str:
        plain = self.sequence.get("none")
        alone = self.alone_sum
        step = (
            "the step was not measured"
            if plain is None
            else f"a step takes {plain.text(format_seconds)}"
        )
        if alone is None:
            return step
        return f"{step}, its operations one after another {alone.text(format_seconds)}"


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
        elif (seconds := interval_of(row)) is not None:
            gaps = row["gaps"] or "none"
            if row["late"] is None:
                sequence[gaps] = seconds
            else:
                late[row["late"], gaps] = seconds
    alone = {}
    limit = {}
    for number, first in first_alike(part.whole).items():
        seconds = interval_of(measured[first]) if first in measured else None
        if seconds is None:
            continue
        alone[number] = seconds
        efficiency = measured[first]["efficiency"]
        if efficiency is not None:
            limit[number] = min(float(efficiency), 1.0) * seconds
    return ReplayTimes(part, sequence, late, alone, limit)
