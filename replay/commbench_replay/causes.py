"""Where the communication time of a replayed job goes: each cause is a difference of two times, and
is named only if its interval lies above zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commbench.core.units import format_seconds
from commbench.stats.interval import Interval

from .replay_times import ReplayTimes
from .waiting import Waiting


@dataclass(frozen=True)
class Cause:
    """`loss` is None where what it needs was not measured, for the reason `missing`. `gain`: what a
    negative one means."""

    name: str
    loss: Interval | None
    meaning: str
    missing: str = ""
    gain: str = ""

    @property
    def is_named(self) -> bool:
        return self.loss is not None and self.loss.low > 0

    def __str__(self) -> str:
        if self.loss is None:
            return f"{self.name}: not known, {self.missing}"
        loss = self.loss.ends_text(format_seconds)
        if self.is_named:
            return f"{self.name}: {loss}: {self.meaning}"
        if self.loss.high < 0 and self.gain:
            return f"{self.name}: no loss, {loss}: {self.gain}"
        return f"{self.name}: inconclusive, {loss}"


def causes(times: ReplayTimes, waiting: Waiting | None = None) -> list[Cause]:
    """`waiting` is that of a step of the traced job."""
    return [
        *([_waiting(waiting)] if waiting is not None else []),
        *_late_causes(times),
        *([_interference(times.sequence)] if {"matmul", "sleep"} & set(times.sequence) else []),
        _contention(times.sequence.get("none"), times.alone_sum),
    ]


def _waiting(waiting: Waiting) -> Cause:
    least = "at least, " if waiting.is_least else ""
    late = waiting.late
    of_late = "" if late is None else f", {late.share:.0%} of it for rank {late.rank}"
    return Cause(
        "waiting",
        waiting.seconds,
        f"{least}in the job ranks waited for the last one of their group{of_late}",
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


def _interference(sequence: Mapping[str, Interval]) -> Cause:
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


def _contention(plain: Interval | None, alone: Interval | None) -> Cause:
    return Cause(
        "contention",
        None if plain is None or alone is None else plain - alone,
        "operations in the job's order and concurrency take longer than alone",
        "the sequence or an operation was not measured",
        "operations at the same time take less than one after another",
    )
