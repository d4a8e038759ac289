"""The visits of a case: it is measured several times during a run, and its row is made from what
rank 0 keeps of them, in bounded memory.

Repetitions of one visit describe the seconds in which they were measured. Changes over minutes show
in the spread between visits, so the interval is made of the visits' medians.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from commbench.core.case import Planned
from commbench.core.units import format_seconds
from commbench.results.columns import INTERRUPTED
from commbench.runtime.recovery import EarlierVisits
from commbench.stats.series import (
    NOISY,
    Z95,
    Series,
    binomial_rank,
    drifting,
    effective_size,
    lag1,
    median_interval,
    multimodal,
    remembered,
    summarise,
    tukey_outliers,
)

from .samples import Block, RowTimes, Samples

REPETITIONS = "repetitions"
VISITS = "visits"
LAUNCHES = "launches"  # what an interval is made of
BOOTSTRAP_VISITS = 10  # least number of visits in several launches for a bootstrap interval
RESAMPLES = 2000
LEVEL_GAP = 0.05  # relative difference between the medians of two levels
KEPT_TIMES = 16_000_000  # of all cases of a run together: 128 MB
LEAST_KEPT_TIMES = 3_000  # of a case, however many there are: enough for a p99.9
Z_OF_PAIRS = 2.94  # for 95 % over all 15 pairs of 6 visits (Bonferroni)


@dataclass(frozen=True)
class Visit:
    """One visit of a case, with times in seconds per operation.

    `interval_s` is the interval of its own repetitions at the wanted level, `widest_s` that for
    comparing all pairs of 6 visits; both are None below 6 repetitions. `segment` is the start of
    the run (a launch) that it belongs to.
    """

    segment: int
    median_s: float
    repetitions: int
    interval_s: tuple[float, float] | None = None
    widest_s: tuple[float, float] | None = None
    effective_repetitions: float = 1.0
    lag1: float = 0.0
    drifting: bool = False

    @classmethod
    def of(cls, times: Series, segment: int = 0, z: float = Z95) -> Visit:
        """Summarise the seconds per operation of at least one repetition."""
        return _visit_of(times, segment, z)


@remembered
def _visit_of(times: Series, segment: int, z: float) -> Visit:
    effective = effective_size(times)
    return Visit(
        segment=segment,
        median_s=float(np.median(times)),
        repetitions=times.size,
        interval_s=median_interval(times, z, effective),
        widest_s=median_interval(times, Z_OF_PAIRS, effective),
        effective_repetitions=effective,
        lag1=lag1(times),
        drifting=drifting(times),
    )


# ---------------------------------------------------------------- all visits of a case


class CaseRecord:
    """The visits of one row of cases.parquet. It keeps at most `kept` evenly spaced times of each
    visit."""

    def __init__(self, kept: int = KEPT_TIMES, z: float = Z95) -> None:
        self._kept = kept
        self.z = z  # the normal quantile of the wanted level
        self.block_k = 1
        self.compute_amount: int | None = None  # see Planned
        self.wrong_elements = 0  # in the latest visit
        self.visits: list[Visit] = []
        self.times: list[Series] = []  # of each visit, in seconds per operation
        self.stop_reason = INTERRUPTED  # until a rule ends the case
        self.broken: str | None = None  # why the world broke in the visit that followed
        self.first_call_s: float | None = None  # of the first visit
        # of each visit whose stamps were kept: the median difference between the ranks' starts
        self.skews_s: list[float] = []
        self.throttle_masks: set[int] = set()
        # of repetitions before which a GPU waited for its host: worst rank and visit
        self.host_bound_share = 0.0
        self.spent_s = self.warmup_s = 0.0
        self.steady = True
        self.thinned = False
        self.late_repetitions: int | None = None
        self.clock_error_s: float | None = None
        self.unmeasured_s: float | None = None  # of a soak
        # by visit and rank; of earlier starts together at (0, 0)
        self.retransmits_of: dict[tuple[int, int], float] = {}
        # from the start of the first visit to the end of the last, without the time between two
        # starts of the run
        self.visits_s: float | None = None
        self.earlier_visits_s = 0.0  # of earlier starts
        self.last_visit = 0  # its number in samples.parquet
        self.earlier: EarlierVisits | None = None  # of earlier starts of the run, if they count
        self._repetitions: dict[str, int] = {}  # by phase, of the visits so far
        self._blocks = 0

    def continue_after(self, earlier: EarlierVisits, launch: int) -> None:
        """Add the visits of earlier starts. The present launch began with segment `launch`."""
        self.last_visit = earlier.last
        self._blocks = earlier.blocks
        self._repetitions = dict(earlier.repetitions)
        if not earlier.times:
            return
        self.earlier = earlier
        row = earlier.row
        self.block_k = int(row["block_k"])
        self.compute_amount = row.get("compute_amount")
        for segment, times in zip(map(int, row["visit_segments"]), earlier.times, strict=True):
            self._count(times, segment)
            self.spent_s += (
                float(times.sum()) * row["operations_per_sample"] if segment >= launch else 0.0
            )
        self.first_call_s = row["first_call_s"]
        self.warmup_s = row["warmup_s"]
        self.steady = row["steady"]
        self.late_repetitions = row["late_repetitions"]
        self.clock_error_s = row["clock_error_s"]
        self.visits_s = row.get("visits_s")
        self.earlier_visits_s = self.visits_s or 0.0
        self.skews_s += [] if row.get("skew_s") is None else [row["skew_s"]] * len(self.visits)
        self.retransmits_of = {} if row.get("retransmits") is None else {(0, 0): row["retransmits"]}
        self.thinned |= "thinned" in row["warnings"]

    def add(self, planned: Planned, samples: Samples, segment: int = 0) -> Samples:
        """Count another visit; returns its samples with blocks and repetitions numbered across
        visits."""
        numbered = self.numbered(samples)
        # it may have ended before it measured anything
        times = None if samples.wrong_elements else samples.of_row(planned)
        self.count_visit(planned, numbered, times, segment)
        return numbered

    def numbered(self, samples: Samples) -> Samples:
        """The samples of the next visit, with blocks and repetitions numbered across visits."""
        return replace(samples, blocks=self._renumbered(samples.blocks))

    @property
    def numbering(self) -> tuple[Any, ...]:
        """What `numbered` continues."""
        return self.last_visit, self._blocks, self._repetitions

    def number_like(self, other: CaseRecord) -> None:
        """The samples of its visits are numbered like those of another pair of its round."""
        self._blocks = other._blocks
        self._repetitions = dict(other._repetitions)

    def count_visit(
        self, planned: Planned, samples: Samples, row_times: RowTimes | None, segment: int
    ) -> None:
        """Count another visit, whose times are None if it received wrong elements."""
        self.block_k = samples.block_k
        self.compute_amount = planned.compute_amount
        self.wrong_elements = samples.wrong_elements
        self.unmeasured_s = samples.unmeasured_s
        self.last_visit += 1
        if row_times is None:
            return
        if not self.visits:
            self.first_call_s = row_times.connect_s
        self._count(row_times.times, segment, samples.repetitions)
        self.thinned |= row_times.times.size < (samples.repetitions or 0)
        if row_times.skew_s is not None:
            self.skews_s.append(row_times.skew_s)
        self.throttle_masks |= samples.throttle_masks
        self.retransmits_of |= {
            (self.last_visit, rank): value for rank, value in samples.retransmits_of.items()
        }
        self.host_bound_share = max(self.host_bound_share, samples.host_bound_share)
        self.spent_s += samples.spent_s + samples.warmup_s
        self.warmup_s += samples.warmup_s
        self.steady &= samples.steady
        if samples.late_repetitions is not None:
            self.late_repetitions = samples.late_repetitions + (self.late_repetitions or 0)
        if samples.clock_error_s is not None:
            self.clock_error_s = max(samples.clock_error_s, self.clock_error_s or 0.0)

    def restarted(self) -> CaseRecord:
        """An empty record, for samples that hold all repetitions of this one. Their counters are
        those since the last samples, so what was read of them stays."""
        record = CaseRecord(self._kept, self.z)
        record.throttle_masks = set(self.throttle_masks)
        record.retransmits_of = dict(self.retransmits_of)
        return record

    def disturbed(self, passes: frozenset[int]) -> bool:
        """Whether at least half of the visits were made in these passes. Only visits of the latest
        start of the run count; its n-th visit is in its n-th pass."""
        visits = sum(visit.segment == self.visits[-1].segment for visit in self.visits)
        return 0 < visits <= 2 * sum(number <= visits for number in passes)

    @property
    def repetitions(self) -> int:
        """Measured repetitions of all visits."""
        return sum(visit.repetitions for visit in self.visits)

    @property
    def retransmits(self) -> int | None:
        """TCP segments that were sent again while measuring; None for a backend that does not count
        them."""
        return round(sum(self.retransmits_of.values())) if self.retransmits_of else None

    def _count(self, times: Series, segment: int, repetitions: int | None = None) -> None:
        """`repetitions` is the number of repetitions where `times` has only some of them."""
        visit = Visit.of(times, segment, self.z)
        if repetitions and repetitions != times.size:
            visit = replace(visit, repetitions=repetitions)
        self.visits.append(visit)
        self.times.append(times[:: max(1, -(-times.size // self._kept))])
        self.thinned |= times.size > self._kept

    def _renumbered(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        before = dict(self._repetitions)
        index = self._blocks
        for block in blocks:
            end = before.get(block.phase, 0) + block.first + block.stamps.shape[1]
            self._repetitions[block.phase] = max(end, self._repetitions.get(block.phase, 0))
        self._blocks += 1 + max((block.index for block in blocks), default=-1)
        return tuple(
            replace(
                block, index=index + block.index, first=before.get(block.phase, 0) + block.first
            )
            for block in blocks
        )


# ---------------------------------------------------------------- the median and its interval


@dataclass(frozen=True)
class Estimate:
    """The median of a case with its interval, in seconds per operation.

    `level` is the probability that such an interval contains the median of all possible visits.
    """

    median_s: float
    low_s: float | None
    high_s: float | None
    of: str
    level: float | None

    @property
    def half_width(self) -> float:
        """Relative to the median; infinite without an interval."""
        if self.low_s is None or self.high_s is None or not self.median_s:
            return math.inf
        return (self.high_s - self.low_s) / 2 / self.median_s


def estimate(visits: Sequence[Visit], z: float = Z95) -> Estimate:
    """The median of the visits' medians; `z` is the normal quantile of the wanted level.

    One visit: the interval of its repetitions. Several: the order statistics of their medians with
    at least the wanted level, or the lowest and highest with their level of 1 - 2^(1-n). At least
    10 visits in several launches: see `_over_launches`.
    """
    medians = np.array([visit.median_s for visit in visits])
    center = float(np.median(medians))
    if len(visits) == 1:
        low, high = visits[0].interval_s or (None, None)
        return Estimate(center, low, high, REPETITIONS, None if low is None else _level(z))
    if len(visits) >= BOOTSTRAP_VISITS and len({visit.segment for visit in visits}) > 1:
        return _over_launches(visits, center, z)
    n = len(visits)
    rank = max(1, binomial_rank(len(visits), z))
    ordered = np.sort(medians)
    return Estimate(
        center, float(ordered[rank - 1]), float(ordered[n - rank]), VISITS, coverage(n, rank)
    )


def coverage(n: int, rank: int) -> float:
    """The probability that the `rank`-th lowest and highest of n independent values enclose the
    median."""
    return 1.0 - 2.0 * sum(math.comb(n, below) for below in range(rank)) / float(2**n)


def _level(z: float) -> float:
    return math.erf(z / math.sqrt(2))


def _over_launches(visits: Sequence[Visit], center: float, z: float) -> Estimate:
    """A hierarchical bootstrap: launches are drawn, then visits within each.

    Launches whose visits do not overlap differ by more than visits do. Then only the launches'
    medians count: the interval is from the lowest to the highest of n, with the level 1 - 2^(1-n).
    """
    segments = sorted({visit.segment for visit in visits})
    launches = [
        np.array([visit.median_s for visit in visits if visit.segment == segment])
        for segment in segments
    ]
    if max(launch.min() for launch in launches) > min(launch.max() for launch in launches):
        medians = [float(np.median(launch)) for launch in launches]
        return Estimate(center, min(medians), max(medians), LAUNCHES, coverage(len(medians), 1))
    drawn = np.sort(bootstrap_medians(launches))
    tail = (1 - _level(z)) / 2
    low, high = (float(drawn[round(share * (len(drawn) - 1))]) for share in (tail, 1 - tail))
    return Estimate(center, low, high, LAUNCHES, _level(z))


def bootstrap_medians(launches: Sequence[Series]) -> Series:
    """Medians of launches drawn with replacement, with visits drawn with replacement within each.
    The draws are always the same, so that a row can be computed again."""
    generator = np.random.default_rng(0)
    visits = max(map(len, launches))
    sizes = np.array([len(launch) for launch in launches])
    table = np.stack([np.pad(launch, (0, visits - len(launch))) for launch in launches])
    chosen = generator.integers(0, len(launches), (RESAMPLES, len(launches)))
    inside = (generator.random((*chosen.shape, visits)) * sizes[chosen][..., np.newaxis]).astype(
        np.int64
    )
    values = np.take_along_axis(table[chosen], inside, axis=2).reshape(RESAMPLES, -1)
    return np.asarray(np.median(values, axis=1), dtype=np.float64)


def spread(visits: Sequence[Visit]) -> float:
    """The ratio of the largest to the smallest median of the visits."""
    medians = [visit.median_s for visit in visits]
    return max(medians) / min(medians) if min(medians) > 0 else math.inf


# ---------------------------------------------------------------- warnings


def flags(visits: Sequence[Visit], times: Sequence[Series], estimated: Estimate) -> list[str]:
    """Warnings about the median: any of noisy, drifting, multimodal, unstable.

    `times` are the seconds per operation of each visit. noisy: the reported interval is wider than
    -+ 5 %; drifting: at least half of the visits drift; multimodal: the times relative to the
    median of their visit have several modes.
    """
    relative = [part / np.median(part) if np.median(part) > 0 else part for part in times]
    raised = {
        "noisy": NOISY < estimated.half_width < math.inf,
        "drifting": 2 * sum(visit.drifting for visit in visits) >= len(visits),
        "multimodal": multimodal(np.concatenate(relative)),
        "unstable": len(levels(visits)) > 1,
    }
    return [name for name, present in raised.items() if present]


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
    return [(float(np.median([visit.median_s for visit in group])), len(group)) for group in groups]


def levels_text(visits: Sequence[Visit]) -> str | None:
    """Such as `2 levels of visits: 262 ns x4, 818 ns x2`; None if there is only one level."""
    seen = levels(visits)
    if len(seen) < 2:
        return None
    return f"{len(seen)} levels of visits: " + ", ".join(
        f"{format_seconds(level)} x{count}" for level, count in seen
    )


# ---------------------------------------------------------------- all statistics together


@dataclass(frozen=True)
class SeriesStatistics:
    """All that follows from the times of the visits alone. `summary` is by column, of all
    repetitions together; `spread` the ratio of the largest to the smallest median of the visits,
    None for a single visit."""

    median: Estimate
    summary: Mapping[str, float | None]
    outliers: int
    spread: float | None
    effective_repetitions: float
    lag1: float
    warnings: tuple[str, ...]
    levels_text: str | None


def series_statistics(
    visits: Sequence[Visit], times: Sequence[Series], z: float
) -> SeriesStatistics:
    """The statistics of at least one visit; `times` are the seconds per operation of each. They are
    computed once for pairs with the same times (see `remembered`)."""
    lengths = tuple(part.size for part in times)
    return _series_statistics(np.concatenate(times), lengths, tuple(visits), z)


@remembered
def _series_statistics(
    times: Series, lengths: tuple[int, ...], visits: tuple[Visit, ...], z: float
) -> SeriesStatistics:
    parts = np.split(times, np.cumsum(lengths)[:-1])
    median = estimate(visits, z)
    repetitions = [visit.repetitions for visit in visits]
    return SeriesStatistics(
        median=median,
        summary=summarise(times),
        outliers=tukey_outliers(times),
        spread=spread(visits) if len(visits) > 1 else None,
        effective_repetitions=sum(visit.effective_repetitions for visit in visits),
        lag1=float(np.average([visit.lag1 for visit in visits], weights=repetitions)),
        warnings=tuple(flags(visits, parts, median)),
        levels_text=levels_text(visits),
    )
