"""Where the communication time of a replayed job goes: each cause is a difference of two times, and
is named only if its interval lies above zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from commbench.core.states import Row, case_status
from commbench.core.units import format_seconds
from commbench.core.variables import Splits
from commbench.replay.scaling import (
    ScaledWorkload,
    first_alike,
    operation_number,
    scaled,
)
from commbench.replay.workload import Workload

WORKLOAD_FILE = "job.json"  # beside the runs of `commbench replay --on`
# rows of one answer
ANSWERED = ("backend", "library", "layout", "engine", "device", "hosts", "splits")


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
class Waiting:
    """How long a rank of a traced job waited for others in a step; `last_rank`: which one came last
    most, in words."""

    seconds: Seconds
    last_rank: str


@dataclass(frozen=True)
class Cause:
    """`loss` is None where what it needs was not measured, for the reason `missing`. `gain`: what a
    negative one means."""

    name: str
    loss: Seconds | None
    meaning: str
    missing: str = ""
    gain: str = ""

    @property
    def is_named(self) -> bool:
        return self.loss is not None and self.loss.low > 0

    def __str__(self) -> str:
        if self.loss is None:
            return f"{self.name}: not known, {self.missing}"
        if self.is_named:
            return f"{self.name}: {self.loss} a step: {self.meaning}"
        if self.loss.high < 0 and self.gain:
            return f"{self.name}: no loss, {self.loss} a step: {self.gain}"
        return f"{self.name}: inconclusive, {self.loss} a step"


@dataclass(frozen=True)
class ReplayTimes:
    """Measured times of one workload in one layout on one backend. `sequence`: by Case.gaps;
    `late`: with a late rank, by Case.late and Case.gaps; `alone`: by the number of the operation;
    `limit`: likewise, where the limit of its link is known. `calls`: how often each operation runs
    in a step on each rank."""

    sequence: Mapping[str, Seconds]
    late: Mapping[tuple[str, str], Seconds]
    alone: Mapping[int, Seconds]
    limit: Mapping[int, Seconds]
    calls: Mapping[int, Mapping[int, float]]

    @property
    def alone_sum(self) -> Seconds | None:
        """All operations of a step one after another, of the rank for which that takes longest;
        None if one was not measured."""
        return self._busiest(self.alone)

    @property
    def limit_sum(self) -> Seconds | None:
        return self._busiest(self.limit)

    def _busiest(self, times: Mapping[int, Seconds]) -> Seconds | None:
        needed = {number for counts in self.calls.values() for number in counts}
        if not needed <= set(times):
            return None
        sums = [
            sum((times[number].times(count) for number, count in counts.items()), ZERO)
            for counts in self.calls.values()
        ]
        return max(sums, key=lambda total: total.value, default=None)


def replay_times(
    rows: Iterable[Row], workload: Workload, ranks: int, splits: Splits | None = None
) -> ReplayTimes:
    """Of the rows of one workload in one layout on one backend, with Case.splits; an operation that
    was not measured alone has the time of the one that is like it."""
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
    for number, first in first_alike(workload).items():
        seconds = measured_seconds(measured[first]) if first in measured else None
        if seconds is None:
            continue
        alone[number] = seconds
        efficiency = measured[first]["efficiency"]
        if efficiency is not None:
            limit[number] = seconds.times(min(float(efficiency), 1.0))
    calls = {
        rank: {number: count / workload.steps for number, count in counts.items()}
        for rank, counts in scaled(workload, ranks, splits).call_counts.items()
    }
    return ReplayTimes(sequence, late, alone, limit, calls)


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


def causes(times: ReplayTimes, waiting: Waiting | None, job_s: float | None) -> list[Cause]:
    """`waiting` and `job_s` (the time without waiting) are those of a step of the traced job."""
    plain = times.sequence.get("none")
    return [
        _waiting(waiting),
        *_late_causes(times),
        _interference(times.sequence),
        _contention(plain, times.alone_sum),
        _link(times),
        _rest(plain, job_s),
    ]


def _waiting(waiting: Waiting | None) -> Cause:
    last_rank = "" if waiting is None else f", most for {waiting.last_rank}"
    return Cause(
        "waiting",
        None if waiting is None else waiting.seconds,
        f"ranks of the job waited for the last one of their group{last_rank}",
        "the traces do not have all ranks of a group, or no times",
    )


def _late_causes(times: ReplayTimes) -> Iterable[Cause]:
    """One for each late rank that was planted, with the first of the gaps that were also measured
    without it."""
    for late in dict.fromkeys(late for late, _ in times.late):
        rank, _, delay = late.partition(":")
        losses = [
            with_it - times.sequence[gaps]
            for (planted, gaps), with_it in times.late.items()
            if planted == late and gaps in times.sequence
        ]
        yield Cause(
            f"waiting for rank {rank}",
            losses[0] if losses else None,
            f"it begins each operation later, by {delay}",
            "late=null was not measured beside it",
        )


def _interference(sequence: Mapping[str, Seconds]) -> Cause:
    loss = None
    if {"matmul", "sleep"} <= set(sequence):
        loss = sequence["matmul"] - sequence["sleep"]
    return Cause(
        "interference",
        loss,
        "computation in the gaps instead of sleep makes the step longer",
        "gaps=[sleep,matmul] were not both measured",
        "the step is shorter with computation in the gaps than with sleep, which ends late",
    )


def _contention(plain: Seconds | None, alone: Seconds | None) -> Cause:
    return Cause(
        "contention",
        None if plain is None or alone is None else plain - alone,
        "operations in the job's order and concurrency take longer than alone",
        "the sequence or an operation was not measured",
        "operations at the same time take less than one after another",
    )


def _link(times: ReplayTimes) -> Cause:
    alone = times.alone_sum
    limit = times.limit_sum
    loss = None if alone is None or limit is None else alone - limit
    return Cause(
        "link",
        loss,
        "operations alone take longer than the limit of their links allows",
        "the limit of a link is not known",
    )


def _rest(plain: Seconds | None, job_s: float | None) -> Cause:
    job = None if job_s is None else Seconds(job_s, job_s, job_s)
    return Cause(
        "rest",
        None if plain is None or job is None else job - plain,
        "the job's operations took longer than their replay; no cause above explains it",
        "the job's own times or the sequence are not known",
        "the replay takes longer than the job's operations: these are other machines",
    )


def sequence_text(times: ReplayTimes) -> str:
    plain = times.sequence.get("none")
    alone = times.alone_sum
    step = "the step was not measured" if plain is None else f"a step takes {plain}"
    return step if alone is None else f"{step}, its operations one after another {alone}"


def part_texts(
    part: ScaledWorkload, ranks: int, job_ranks: int, splits: Splits | None
) -> Iterator[str]:
    """Which ranks of the job are replayed, what of them is not, and what is not as it was."""
    if ranks < job_ranks or part.dropped:
        reasons = "; ".join(part.dropped)
        dropped = f", {part.dropped_share:.0%} of their bytes dropped: {reasons}"
        yield f"{ranks} of the job's {job_ranks} ranks{dropped if part.dropped else ''}"
    if part.changed_bytes:
        yield (
            f"splits={splits}: the counts of all_to_all_v, of {part.changed_share:.0%} of their"
            " bytes, are not the job's"
        )


def job_seconds(workload: Workload) -> float | None:
    """The time of a step's operations in the job, without waiting, of the rank with most; None
    where one is not known or only an upper bound."""
    known = [each.job_s is not None and not each.is_bound for each in workload.operations]
    if not all(known):
        return None
    totals = [
        sum(workload.operations[call.operation].job_s or 0.0 for call in order.calls)
        for order in workload.orders
    ]
    return max(totals, default=0.0) / workload.steps
