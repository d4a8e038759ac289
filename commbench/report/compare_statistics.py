"""From launch medians to a verdict. Pure: no files, no data frames.

Repetitions inside one launch never decide: a launch has its own placement, page colours and routes, which more
repetitions do not average out. So launches are resampled, and the repetitions within them only where they are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

DRAWS = 10_000
LEAST_LAUNCHES = 4  # per side: the fewest with which Mann-Whitney can reach 0.05 (2/70)
GOOD_LAUNCHES = 10
MOST_LAUNCHES = 100  # per side: beyond this no number of launches is suggested
ALPHA = 0.05
INTERVAL = (2.5, 97.5)  # percentiles of the draws: 95 %
EXACT = 60  # launches of both sides together up to which the rank sums are counted
SPLITS = 400  # random halves of A/A launches
NOISE_PERCENTILE = 95


@dataclass(frozen=True)
class Launches:
    """One case of one side: seconds per operation, the median of each launch, and its repetitions where known.

    `effective` is the number of independent repetitions that each launch is worth.
    """

    medians: Series
    repetitions: tuple[Series | None, ...] = ()
    effective: tuple[float, ...] = ()

    @property
    def hierarchical(self) -> bool:
        return any(series is not None for series in self.repetitions)


@dataclass(frozen=True)
class Ratio:
    """Time of NEW / time of BASE with its 95 % interval."""

    value: float
    low: float
    high: float


# ---------------------------------------------------------------- bootstrap


def ratio(base: Launches, new: Launches, paired: bool) -> float:
    """The ratio of the medians over launches; paired: the median of the ratios of launches with the same index."""
    if paired:
        return float(np.median(new.medians / base.medians))
    return float(np.median(new.medians) / np.median(base.medians))


def bootstrap(
    base: Launches, new: Launches, rng: np.random.Generator, paired: bool = False, draws: int = DRAWS
) -> Ratio:
    """Percentile interval from `draws` hierarchical resamples: launches, then repetitions within each of them."""
    picks = [rng.integers(side.medians.size, size=(draws, side.medians.size)) for side in (base, new)]
    if paired:
        picks[1] = picks[0]
    drawn = [_resampled_launches(side, pick, rng) for side, pick in zip((base, new), picks, strict=True)]
    if paired:
        logs = np.median(np.log(drawn[1] / drawn[0]), axis=1)
    else:
        logs = np.log(np.median(drawn[1], axis=1) / np.median(drawn[0], axis=1))
    low, high = np.exp(np.percentile(logs, INTERVAL))
    return Ratio(ratio(base, new, paired), float(low), float(high))


def _resampled_launches(side: Launches, picks: NDArray[np.int64], rng: np.random.Generator) -> Series:
    """Medians of the picked launches [draws, launches], each from freshly resampled repetitions."""
    medians: Series = side.medians[picks]
    for index, series in enumerate(side.repetitions):
        if series is not None:
            where = picks == index
            medians[where] = resampled_medians(series, side.effective[index], int(where.sum()), rng)
    return medians


def resampled_medians(series: Series, effective: float, count: int, rng: np.random.Generator) -> Series:
    """Medians of `count` resamples of `effective` repetitions.

    The median of n draws from a sample is its quantile at the middle order statistic of n uniforms, which is
    Beta((n+1)/2, (n+1)/2): the same as drawing n indices where n is odd, without drawing them.
    """
    shape = (max(effective, 1.0) + 1) / 2
    places = np.floor(rng.beta(shape, shape, size=count) * series.size).astype(np.int64)
    picked: Series = np.sort(series)[np.minimum(places, series.size - 1)]
    return picked


# ---------------------------------------------------------------- verdict


def verdict(interval: Ratio, delta: float) -> str:
    """FASTER or SLOWER where the whole interval is beyond 1 + delta, SAME where it is within, else UNDECIDED."""
    low, high, edge = math.log(interval.low), math.log(interval.high), math.log1p(delta)
    if low > edge:
        return "SLOWER"
    if high < -edge:
        return "FASTER"
    return "SAME" if -edge <= low and high <= edge else "UNDECIDED"


def missing_launches(interval: Ratio, delta: float, launches: int) -> int | None:
    """How many more launches per side a verdict needs, if the interval shrinks with 1/sqrt(n) about this ratio.

    None where that would need over 100 per side: the ratio is too near to the threshold.
    """
    gap = abs(abs(math.log(interval.value)) - math.log1p(delta))
    half = math.log(interval.high / interval.low) / 2
    if gap * math.sqrt(MOST_LAUNCHES) < half * math.sqrt(launches):
        return None
    return max(math.ceil(launches * (half / gap) ** 2) - launches, 1) if gap > 0 else None


def noise(medians: Series, rng: np.random.Generator) -> float:
    """95th percentile of |log r| between random halves of launches under identical conditions; needs at least 4."""
    half = medians.size // 2
    orders = rng.permuted(np.tile(medians, (SPLITS, 1)), axis=1)
    logs = np.log(np.median(orders[:, :half], axis=1) / np.median(orders[:, half : 2 * half], axis=1))
    return float(np.percentile(np.abs(logs), NOISE_PERCENTILE))


# ---------------------------------------------------------------- second opinion


def mann_whitney(first: Series, second: Series) -> float:
    """Two-sided p that neither side tends to be slower: twice the smaller tail of the rank sum, at most 1.

    Exact, also with ties (midranks), for up to 60 values; above, the normal limit with the correction for ties
    (Mann & Whitney 1947; Lehmann, Nonparametrics, 1.4).
    """
    ranks = _doubled_ranks(np.concatenate([first, second]))
    observed = int(ranks[: first.size].sum())
    if ranks.size > EXACT:
        return _normal_tails(ranks, first.size, observed)
    ways = _rank_sum_counts(ranks, first.size)
    tails = ways[: observed + 1].sum(), ways[observed:].sum()
    return min(1.0, float(2 * min(tails) / ways.sum()))


def _doubled_ranks(values: Series) -> NDArray[np.int64]:
    """Twice the midranks, which are integers: ties share the sum of their first and last rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    doubled: NDArray[np.int64] = (2 * last - counts + 1)[inverse]
    return doubled


def _rank_sum_counts(ranks: NDArray[np.int64], size: int) -> Series:
    """How many subsets of `size` ranks have each sum."""
    ways = np.zeros((size + 1, int(ranks.sum()) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    return np.asarray(ways[size], dtype=np.float64)


def _normal_tails(ranks: NDArray[np.int64], size: int, observed: int) -> float:
    """The normal approximation, with a continuity correction of half a rank."""
    total = ranks.size
    centre = size * (total + 1)
    variance = size * (total - size) / (total - 1) * float(((ranks - (total + 1)) ** 2).sum()) / total
    distance = max(abs(observed - centre) - 1, 0)
    return math.erfc(distance / math.sqrt(2 * variance)) if variance else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p: the smallest times m, the next times m - 1 and so on, never falling, at most 1 (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted
