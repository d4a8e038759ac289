"""The visits of a case: it is measured several times during a run, and its row is made from what
rank 0 keeps of them, in bounded memory.

Repetitions of one visit describe the seconds in which they were measured. Changes over minutes show
in the spread between visits, so the interval is made of the visits' medians.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from commbench.core.states import INTERRUPTED
from commbench.core.units import format_seconds
from commbench.core.variables import EVENT_TIMED
from commbench.results.columns import grouped
from commbench.runtime.recovery import EarlierVisits
from commbench.stats.interval import Interval
from commbench.stats.series import (
    SMALLEST_INTERVAL,
    Z95,
    Modes,
    Series,
    binomial_rank,
    drifting,
    effective_size,
    far_modes,
    lag1,
    median_interval,
    median_of,
    multimodal,
)
from commbench.stats.thresholds import FEW_LAUNCHES, WAITED_SHARE

from .row_samples import RowSamples
from .samples import (
    RETRANSMITS,
    RUNNING,
    Samples,
    core_wait_share,
    host_bound_share,
    is_throttled,
    readings,
)

REPETITIONS = "repetitions"
VISITS = "visits"
LAUNCHES = "launches"  # what an interval is made of
LEVEL_GAP = 0.05  # relative difference between the medians of two levels
KEPT_TIMES = 16_000_000  # of all cases of a run together: 128 MB
LEAST_KEPT_TIMES = 3_000  # of a case, however many there are: enough for a p99.9
Z_OF_PAIRS = 2.94  # for 95 % over all 15 pairs of 6 visits (Bonferroni)
HOST_BOUND_SHARE = 0.05  # of the repetitions: more are flagged


@dataclass(frozen=True, eq=False)
class Visit:
    """All that rank 0 keeps of one visit of a row, with times in seconds per operation.

    `interval_s` is the interval of its own repetitions at the wanted level, None where they count
    as fewer than 6; `widest_s` is that for comparing all pairs of 6 visits, None below 6. Of a soak
    of a stream, `median_s` is the mean. `launch` is the start of the run that it belongs to.
    `times` are evenly spaced if there were too many of them.
    """

    launch: int
    median_s: float
    repetitions: int
    interval_s: tuple[float, float] | None = None
    widest_s: tuple[float, float] | None = None
    effective_repetitions: float = 1.0
    lag1: float = 0.0
    drifting: bool = False
    times: Series = field(default_factory=lambda: np.zeros(0))
    block_k: int = 1
    compute_amount: int | None = None  # see Benchmark
    stop_reason: str = INTERRUPTED
    started_at: datetime | None = None
    # from the start of the first visit of the row, without the time between two starts of the run
    end_s: float | None = None
    spent_s: float = 0.0  # with the warm-up
    warmup_s: float = 0.0
    is_steady: bool = True
    first_call_s: float | None = None
    skew_s: float | None = None  # median difference between the starts of the ranks
    retransmits: Mapping[int, float] = field(default_factory=dict)  # by rank
    core_wait_share: float | None = None  # of the rank that waited longest for a core
    is_throttled: bool = False
    is_host_bound: bool = False  # a GPU waited for its host before many repetitions of a rank
    findings: Mapping[str, Any] = field(default_factory=dict)  # see measure.measuring

    @classmethod
    def of(cls, times: Series, launch: int = 0, z: float = Z95, kept: int = KEPT_TIMES) -> Visit:
        """The statistics of the seconds per operation of at least one repetition, of which at most
        `kept` stay."""
        effective = effective_size(times)
        return cls(
            launch=launch,
            median_s=median_of(times),
            repetitions=times.size,
            interval_s=(
                None if effective < SMALLEST_INTERVAL else median_interval(times, z, effective)
            ),
            widest_s=median_interval(times, Z_OF_PAIRS, effective),
            effective_repetitions=effective,
            lag1=lag1(times),
            drifting=drifting(times),
            times=times[:: max(1, -(-times.size // kept))],
        )

    @property
    def is_dependent(self) -> bool:
        """Whether its repetitions depend on one another so much that they have no interval."""
        return self.interval_s is None and self.repetitions >= SMALLEST_INTERVAL

    def measured(
        self,
        row: RowSamples,
        samples: Samples,
        started_at: datetime,
        end_s: float,
        z: float = Z95,
    ) -> Visit:
        """The same with what is known besides the times; `samples` are those of all rows."""
        repetitions = samples.repetitions or self.repetitions
        mean_s = samples.operation_s
        return replace(
            self if mean_s is None else self._of_mean(mean_s, z),
            repetitions=repetitions,
            block_k=samples.block_k,
            compute_amount=row.planned.benchmark.compute_amount,
            stop_reason=samples.stop_reason,
            started_at=started_at,
            end_s=end_s,
            spent_s=samples.spent_s + samples.warmup_s,
            warmup_s=samples.warmup_s,
            is_steady=samples.steady,
            first_call_s=row.first_call_s,
            skew_s=row.skew_s,
            retransmits=dict(readings(row.counts, RETRANSMITS)),
            core_wait_share=core_wait_share(row.counts),
            is_throttled=is_throttled(row.counts),
            is_host_bound=host_bound_share(row.counts, repetitions) > HOST_BOUND_SHARE,
            findings=samples.findings,
        )

    @property
    def has_waited(self) -> bool:
        """Whether a rank waited for a core during a visible part of it."""
        return (self.core_wait_share or 0.0) > WAITED_SHARE

    def _of_mean(self, mean_s: float, z: float) -> Visit:
        """The same with the mean in place of the median. The interval is that of a mean of so many
        independent repetitions."""
        spread = float(np.std(self.times) / np.mean(self.times))
        share = spread / math.sqrt(self.effective_repetitions)
        interval_s, widest_s = (
            (mean_s / (1 + each * share), mean_s * (1 + each * share)) for each in (z, Z_OF_PAIRS)
        )
        return replace(
            self,
            median_s=mean_s,
            interval_s=None if self.interval_s is None else interval_s,
            widest_s=None if self.widest_s is None else widest_s,
        )

    def after(self, running: Visit) -> Visit:
        """The visit with the counters of its part so far: later samples have only later ones."""
        return replace(
            self,
            retransmits={**running.retransmits, **self.retransmits},
            is_throttled=running.is_throttled or self.is_throttled,
        )


def earlier_visits(earlier: EarlierVisits, z: float = Z95, kept: int = KEPT_TIMES) -> list[Visit]:
    """The visits of earlier starts, from their samples and their row. Sums of the row stand in the
    first visit."""
    if not earlier.times:
        return []
    row = earlier.row
    visits = []
    for launch, times in zip(row.visit_launches or (), earlier.times, strict=True):
        visit = Visit.of(times, launch, z, kept)
        visits.append(
            replace(
                visit,
                block_k=row.block_k or 1,
                compute_amount=row.compute_amount,
                started_at=row.started_at,
                end_s=row.visits_s,
                spent_s=float(times.sum()) * (row.operations_per_sample or 1),
                is_steady=bool(row.steady),
                first_call_s=row.first_call_s,
                skew_s=row.skew_s,
                core_wait_share=row.core_wait_share,
                is_throttled="throttled" in row.warnings,
                # by the host's clock it is about timer and call, which this start finds out anew
                is_host_bound="overhead" in row.warnings and row.timer in EVENT_TIMED,
            )
        )
    retransmits = row.retransmits
    visits[0] = replace(
        visits[0],
        warmup_s=row.warmup_s or 0.0,
        retransmits={} if retransmits is None else {0: retransmits},
        findings=vars(row),
    )
    return visits


# ---------------------------------------------------------------- all visits of a row


@dataclass
class CaseRecord:
    """The visits of one row of cases.parquet, to which further ones are added, and what was decided
    about them."""

    visits: list[Visit] = field(default_factory=list)
    stop_reason: str = INTERRUPTED  # until a rule ends the case
    broken: str | None = None  # why the world broke in the visit that followed
    waited_s: float = 0.0  # between passes of this launch: its part of the time of the case

    def add(self, visit: Visit) -> None:
        """Add a visit; it replaces one that was still running (a soak)."""
        if self.visits and self.visits[-1].stop_reason == RUNNING:
            visit = visit.after(self.visits.pop())
        self.visits.append(visit)

    def spent_s(self, since: int) -> float:
        """The time that the case has taken from launch `since` on."""
        present = (visit.spent_s for visit in self.visits if visit.launch >= since)
        return sum(present) + self.waited_s


@dataclass(frozen=True)
class Numbering:
    """The numbers that visits, blocks and, by phase, repetitions of a case have in samples.parquet:
    those of the last visit, and of the next block and repetition."""

    visit: int = 0
    block: int = 0
    repetitions: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[EarlierVisits]) -> Numbering:
        """What follows on earlier starts of the run."""
        repetitions = dict[str, int]()
        visit = block = 0
        for row in rows:
            visit = max(visit, row.last)
            block = max(block, row.blocks)
            for phase, end in row.repetitions.items():
                repetitions[phase] = max(end, repetitions.get(phase, 0))
        return cls(visit, block, repetitions)

    def numbered(self, samples: Samples) -> Samples:
        """The samples of the next visit, with blocks and repetitions numbered across visits."""
        blocks = tuple(
            replace(
                block,
                index=self.block + block.index,
                first=self.repetitions.get(block.phase, 0) + block.first,
            )
            for block in samples.blocks
        )
        return replace(samples, blocks=blocks)

    def after(self, numbered: Samples) -> Numbering:
        """The numbers after a visit."""
        ends = dict(self.repetitions)
        for block in numbered.blocks:
            end = block.first + block.stamps.shape[1]
            ends[block.phase] = max(end, ends.get(block.phase, 0))
        last = max((block.index for block in numbered.blocks), default=self.block - 1)
        return Numbering(self.visit + 1, last + 1, ends)


# ---------------------------------------------------------------- the median and its interval


def estimate(visits: Sequence[Visit], z: float = Z95) -> Interval:
    """The median of the visits' medians, in seconds per operation; `z` is the normal quantile of
    the wanted level.

    One visit: the interval of its repetitions, if they have one. Several: order statistics of their
    medians. In FEW_LAUNCHES or more launches, each launch counts as one value, the median of its
    visits: how far launches differ, only launches show. The level is the wanted one, or that of the
    lowest and the highest value where it is lower, 1 - 2^(1-n).
    """
    if len(visits) == 1:
        (visit,) = visits
        if visit.interval_s is None:
            return Interval(visit.median_s, n=visit.repetitions, of=REPETITIONS)
        level = math.erf(z / math.sqrt(2))
        return Interval(visit.median_s, *visit.interval_s, level, visit.repetitions, REPETITIONS)
    launches = grouped(visits, lambda visit: visit.launch).values()
    is_over_launches = len(launches) >= FEW_LAUNCHES
    groups = launches if is_over_launches else [[visit] for visit in visits]
    values = sorted(median(visit.median_s for visit in group) for group in groups)
    n = len(values)
    rank = max(1, binomial_rank(n, z))
    return Interval(
        median(values),
        values[rank - 1],
        values[n - rank],
        coverage(n, rank),
        n,
        LAUNCHES if is_over_launches else VISITS,
    )


def coverage(n: int, rank: int) -> float:
    """The probability that the `rank`-th lowest and highest of n independent values enclose the
    median."""
    return 1.0 - 2.0 * sum(math.comb(n, below) for below in range(rank)) / float(2**n)


def spread(visits: Sequence[Visit]) -> float:
    """The ratio of the largest to the smallest median of the visits."""
    medians = [visit.median_s for visit in visits]
    return max(medians) / min(medians) if min(medians) > 0 else math.inf


# ---------------------------------------------------------------- changes


def changes(visits: Sequence[Visit]) -> list[str]:
    """How the times changed while they were measured, a text for each way: levels of visits, a
    drift in at least half of them, several modes of the times relative to the median of their
    visit."""
    drifts = sum(visit.drifting for visit in visits)
    texts = {
        levels_text(visits): len(levels(visits)) > 1,
        f"both halves of the repetitions differ in {drifts} of {len(visits)} visits": (
            2 * drifts >= len(visits)
        ),
        "the repetitions have several typical times": multimodal(_relative_times(visits)),
        _dependent_text(visits[0]): len(visits) == 1 and visits[0].is_dependent,
    }
    return [text for text, present in texts.items() if present]


def _dependent_text(visit: Visit) -> str:
    return (
        f"{visit.repetitions} repetitions depend on one another and count as"
        f" {visit.effective_repetitions:.1f}; an interval needs {SMALLEST_INTERVAL}"
    )


def modes_of(visits: Sequence[Visit]) -> Modes | None:
    """Two typical times of the repetitions in s, within the visits: see `far_modes`."""
    modes = far_modes(_relative_times(visits))
    if modes is None:
        return None
    usual_s = median(visit.median_s for visit in visits)
    return Modes(modes.fast * usual_s, modes.slow * usual_s, modes.slow_share)


def _relative_times(visits: Sequence[Visit]) -> Series:
    """The times of all visits, each over the median of its visit: levels of visits are no modes."""
    return np.concatenate(
        [visit.times / visit.median_s if visit.median_s > 0 else visit.times for visit in visits]
    )


def levels(visits: Sequence[Visit]) -> list[tuple[float, int]]:
    """The levels of the visits in ascending order: median in s and number of visits of each.

    Two neighbours in ascending order have different levels if they are more than 5 % apart and the
    intervals of their repetitions do not overlap. Visits of fewer than 6 repetitions have no
    interval and start no level.
    """
    ordered = sorted(visits, key=lambda visit: visit.median_s)
    groups = [[ordered[0]]]
    for below, above in pairwise(ordered):
        apart = above.median_s > (1 + LEVEL_GAP) * below.median_s
        explained = (
            below.widest_s is None
            or above.widest_s is None
            or below.widest_s[1] >= above.widest_s[0]
        )
        if apart and not explained:
            groups.append([])
        groups[-1].append(above)
    return [(median(visit.median_s for visit in group), len(group)) for group in groups]


def levels_text(visits: Sequence[Visit]) -> str:
    """Such as `2 levels of visits: 262 ns x4, 818 ns x2`."""
    seen = levels(visits)
    return f"{len(seen)} levels of visits: " + ", ".join(
        f"{format_seconds(level)} x{count}" for level, count in seen
    )
