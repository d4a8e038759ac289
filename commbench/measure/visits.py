"""Statistics over visits: a case is measured several times during a run, and its median is that of
its visits.

Repetitions of one visit describe the seconds in which they were measured. Changes over minutes show
in the spread between visits, so the interval is made of the visits' medians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from commbench.core.units import format_seconds

from .statistics import (
    NOISY,
    Z95,
    Series,
    binomial_rank,
    drifting,
    effective_size,
    lag1,
    median_interval,
    multimodal,
)

REPETITIONS = "repetitions"
VISITS = "visits"
LAUNCHES = "launches"  # what an interval is made of
BOOTSTRAP_VISITS = 10  # least number of visits in several launches for a bootstrap interval
RESAMPLES = 2000
LEVEL_GAP = 0.05  # relative difference between the medians of two levels
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
        effective = effective_size(times)
        return cls(
            segment=segment,
            median_s=float(np.median(times)),
            repetitions=times.size,
            interval_s=median_interval(times, z, effective),
            widest_s=median_interval(times, Z_OF_PAIRS, effective),
            effective_repetitions=effective,
            lag1=lag1(times),
            drifting=drifting(times),
        )


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
