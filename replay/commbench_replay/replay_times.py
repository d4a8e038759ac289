"""The times of a replayed workload: of its step, and of each of its operations alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from commbench.core.units import format_seconds
from commbench.results.intervals import interval_of
from commbench.results.row import Row
from commbench.stats.interval import Interval

from .named_workload import operation_number
from .scaling import ScaledWorkload
from .workload import first_alike

ZERO = Interval(0.0, 0.0, 0.0)
LIKE_THE_JOB = ("matmul", "sleep")  # Case.gaps, the likest first
LOWER_BOUND = (
    "communication alone is a lower bound of what it takes in the job on these machines: nothing"
    " computes beside it, and no rank is late. Where the library's threads share cores with the"
    " computation (gloo, MPI), it may take several times as long"
)


@dataclass(frozen=True)
class ReplayTimes:
    """Times of `part` of a workload in one layout on one backend. `sequence`: by Case.gaps; `late`:
    with a late rank, by Case.late and Case.gaps; `alone`: by the number of the operation."""

    part: ScaledWorkload
    sequence: Mapping[str, Interval]
    late: Mapping[tuple[str, str], Interval]
    alone: Mapping[int, Interval]

    @property
    def alone_sum(self) -> Interval | None:
        """All operations of a step one after another, of the rank for which that takes longest;
        None if one was not measured."""
        needed = {number for calls in self.part.step_calls for number in calls}
        if not needed <= set(self.alone):
            return None
        sums = [
            sum((count * self.alone[number] for number, count in calls.items()), ZERO)
            for calls in self.part.step_calls
        ]
        return max(sums, key=lambda total: total.value, default=None)

    def sentences(self) -> Iterator[str]:
        """How long a step takes here, and its communication; see LOWER_BOUND."""
        unit = self.part.whole.unit
        alone = self.sequence.get("none")
        computing = next((gaps for gaps in LIKE_THE_JOB if gaps in self.sequence), None)
        alone_text = "" if alone is None else f"communication alone {alone.text(format_seconds)}"
        if computing is not None:
            beside = ", with sleep for computation" if computing == "sleep" else ""
            whole_text = (
                f"{unit} takes {self.sequence[computing].text(format_seconds)} here{beside}"
            )
            here = ", ".join(filter(None, (whole_text, alone_text)))
        else:
            here = f"{alone_text} here" if alone_text else f"{unit} was not measured"
        in_job = self.part.whole.times_text if self.part.ranks == self.part.whole.ranks else ""
        yield f"{here} (the job: {in_job})" if in_job else here
        if self.alone_sum is not None:
            yield f"its operations one after another: {self.alone_sum.text(format_seconds)}"


def replay_times(rows: Iterable[Row], part: ScaledWorkload) -> ReplayTimes:
    """Of the rows of a workload in one layout on one backend. An operation that was not measured
    alone has the time of the one that is like it."""
    sequence: dict[str, Interval] = {}
    late: dict[tuple[str, str], Interval] = {}
    measured: dict[int, Interval | None] = {}
    for row in rows:
        number = operation_number(row.workload)
        seconds = interval_of(row)
        gaps = row.gaps or "none"
        if number is not None:
            measured[number] = seconds
        elif seconds is not None and row.late is None:
            sequence[gaps] = seconds
        elif seconds is not None and row.late is not None:
            late[row.late, gaps] = seconds
    alone = {
        number: seconds
        for number, first in first_alike(part.whole).items()
        if (seconds := measured.get(first)) is not None
    }
    return ReplayTimes(part, sequence, late, alone)
