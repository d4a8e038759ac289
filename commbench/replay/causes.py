"""Where the communication time of a replayed job goes: each cause is a difference of two times, and
is named only if its interval lies above zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commbench.core.units import format_seconds
from commbench.stats.interval import Interval

from .analysis import LEAST_WAITING_NS, late_ranks
from .replay_times import ReplayTimes
from .training_job import TrainingJob


@dataclass(frozen=True)
class Waiting:
    """How long a rank of a traced job waited for others in a step; `last_rank`: which one came last
    most, in words."""

    seconds: Interval
    last_rank: str


def waiting_of(job: TrainingJob) -> Waiting | None:
    """Of a step, the mean over the ranks; None where it is not known. The ends of an operation on
    different ranks are up to LEAST_WAITING_NS apart, which is its error."""
    late = late_ranks(job)
    if not job.collectives or any(collective.is_bound for collective in job.collectives):
        return None
    waits = [wait for collective in job.collectives for wait in collective.waiting_ns.values()]
    steps = max(job.steps, 1)
    waiting_s = sum(waits) / len(job.ranks) / steps / 1e9
    error_s = len(waits) * LEAST_WAITING_NS / len(job.ranks) / steps / 1e9
    seconds = Interval(waiting_s, waiting_s - error_s, waiting_s + error_s)
    last_rank = f"rank {late[0].rank}" if late else "none of them"
    return Waiting(seconds, last_rank)


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
            return f"{self.name}: {loss} a step: {self.meaning}"
        if self.loss.high < 0 and self.gain:
            return f"{self.name}: no loss, {loss} a step: {self.gain}"
        return f"{self.name}: inconclusive, {loss} a step"


def causes(times: ReplayTimes, waiting: Waiting | None = None) -> list[Cause]:
    """`waiting` is that of a step of the traced job."""
    plain = times.sequence.get("none")
    return [
        _waiting(waiting),
        *_late_causes(times),
        _interference(times.sequence),
        _contention(plain, times.alone_sum),
        _link(times),
        _rest(plain, times.part.job_s),
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


def _rest(plain: Interval | None, job_s: float | None) -> Cause:
    job = None if job_s is None else Interval(job_s, job_s, job_s)
    return Cause(
        "rest",
        None if plain is None or job is None else job - plain,
        "the job's operations took longer than their replay; no cause above explains it",
        "the job's own times or the sequence are not known",
        "the replay takes longer than the job's operations: these are other machines",
    )
