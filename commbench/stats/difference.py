"""When two measured times count as different in a report, and the statistics of launches that
`stats/verdict.py` decides by.

A launch has its own placement, page colours and routes, which more repetitions inside it do not
average out. So launches are what is compared:

- With launches enough the Mann-Whitney test decides, exact for any distribution, at 5 % for
  all cases together.
- With fewer, a difference is stated for this run only: the medians must be as far apart as FAR
  says, of launches or, with fewer than 3, of the visits of a run. Where the two come from different
  runs, they must also be further apart than launches of the same case usually are.

The interval of a ratio is that of Hodges and Lehmann, the inverted Mann-Whitney test (Lehmann,
Nonparametrics, 2.6; in pairs: the signed-rank test).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commbench.stats.interval import Interval
from commbench.stats.series import Z95, Series
from commbench.stats.thresholds import FEW_LAUNCHES

NOISE_LAUNCHES = 4  # under identical conditions: two random halves of two
ALPHA = 0.05
LEVEL = 1 - ALPHA
# Below the exact 95 %, intervals are stretched about their middle. By simulation with normal,
# exponential and two-level launches 3 against 3 then differ falsely in at most 4 % (10 % without).
STRETCH = 1.5
# The gap between two medians of so many values over the sum of their ranges, as logs, that equal
# things exceed in at most 0.2 %: by simulation with normal, exponential, lognormal and heavy-tailed
# noise. A confidence interval of 95 % counts as a range of more.
FAR = {1: math.inf, 2: math.inf, 3: 2.0, 4: 1.0, 5: 0.75}
FAR_OF_MORE = 0.6
RANGE_OF_THREE = 0.75  # its level
# One launch does not show how much launches differ: 8 B between two ranks on one machine moved by a
# factor of 3. This factor is exceeded by 4 % of pairs of launches that vary by 30 % (standard
# deviation of the logarithm).
LAUNCH_FACTOR = 2.4
EXACT = 60  # ranks up to which their sums are counted; above, the normal limit
SPLITS = 400  # random halves of A/A launches
NOISE_PERCENTILE = 95


@dataclass(frozen=True)
class Time:
    """The median of a case in seconds, with the widest interval of its launches, and that of each
    launch.

    `run_id`: set if one run measured it in visits spread over the run, which makes it comparable
    with others of that run.
    """

    median: Interval
    launches_s: tuple[float, ...]
    run_id: str | None = None

    @property
    def median_s(self) -> float:
        return self.median.value


def differ(first: Time, second: Time, cases: int = 1) -> bool:
    """Whether two times count as different by the rule above, being one of so many cases."""
    launches = len(first.launches_s), len(second.launches_s)
    if are_enough(*launches, cases):
        p_value = mann_whitney(np.array(first.launches_s), np.array(second.launches_s))
        return p_value * cases <= ALPHA
    fast, slow = sorted((first, second), key=lambda side: side.median_s)
    gap = math.log(slow.median_s / fast.median_s)
    if min(launches) >= FEW_LAUNCHES:
        ranges = sum(math.log(max(side.launches_s) / min(side.launches_s)) for side in (fast, slow))
        return gap > FAR.get(min(launches), FAR_OF_MORE) * ranges
    if not (fast.median.is_known and slow.median.is_known):
        return False
    ranges = sum(math.log(side.median.high / side.median.low) for side in (fast, slow))
    # a range of n values has the level 1 - 2^(1 - n); that of an older file is not known
    level = min(side.median.level or RANGE_OF_THREE for side in (fast, slow))
    far = FAR_OF_MORE
    if level < LEVEL:
        far = FAR.get(1 - math.floor(math.log2(1 - level)), FAR_OF_MORE)
    same_run = first.run_id is not None and first.run_id == second.run_id
    least_gap = 0.0 if same_run else math.log(LAUNCH_FACTOR)
    return gap > max(least_gap, far * ranges)


def are_enough(first: int, second: int, cases: int) -> bool:
    """Whether so many launches of two times can differ for certain in one of so many cases."""
    return 2 * cases <= ALPHA * outcomes(first, second)


# ---------------------------------------------------------------- the interval of a ratio


def ratio(base: Series, new: Series, paired: bool = False) -> float:
    """The ratio of the medians over launches; paired: the median of the ratios of launches with the
    same index."""
    return float(np.median(new / base)) if paired else float(np.median(new) / np.median(base))


def ratio_interval(base: Series, new: Series, paired: bool = False) -> Interval:
    """The ratio of two sides, seconds of each launch, with its interval; stretched where too few
    allow 95 %."""
    if paired:
        logs = np.log(new / base)
        first, second = np.triu_indices(base.size)
        logs = (logs[first] + logs[second]) / 2  # Walsh averages
    else:
        logs = (np.log(new)[None, :] - np.log(base)[:, None]).ravel()
    logs = np.sort(logs)
    critical = _critical(base.size, new.size, paired)
    low = logs[max(critical, 0)]
    high = logs[-1 - max(critical, 0)]
    middle = np.median(logs)
    if critical < 0:
        low = middle + STRETCH * (low - middle)
        high = middle + STRETCH * (high - middle)
    value = ratio(base, new, paired)
    launches = min(base.size, new.size)
    return Interval(value, float(np.exp(low)), float(np.exp(high)), LEVEL, launches, "launches")


@functools.cache  # all cases of a comparison have a few sizes
def _critical(first: int, second: int, paired: bool) -> int:
    """The largest sum of ranks, from its least value on, that two-sided 5 % reject; -1 where there
    is none."""
    ranks = np.arange(1, (first if paired else first + second) + 1)
    if ranks.size > EXACT:
        largest = ranks.sum() if paired else first * second
        spread = math.sqrt(largest * (first + second + 1) / 12)
        return math.floor(largest / 2 - Z95 * spread - 0.5)
    ways = (
        _signed_rank_counts(ranks)
        if paired
        else _rank_sum_counts(tuple(ranks.tolist()), first)[first * (first + 1) // 2 :]
    )
    return int(np.searchsorted(np.cumsum(ways) / ways.sum(), ALPHA / 2, side="right")) - 1


# ---------------------------------------------------------------- how many launches


def launches_needed(cases: int, paired: bool = False) -> int:
    """Launches per side at which one of so many cases can be SLOWER or FASTER for certain: at
    5 %, corrected for the number of cases. What one case takes, any verdict takes.

    Two sides that do not overlap have p = 2 / C(2 n, n) in the Mann-Whitney test, n pairs that all
    differ in the same direction 2 / 2^n in the signed-rank test; Holm's correction multiplies them
    by the number of cases.
    """
    launches = 1
    while 2 * max(cases, 1) > ALPHA * outcomes(launches, launches, paired):
        launches += 1
    return launches


def outcomes(base: int, new: int, paired: bool = False) -> int:
    """How many equally likely outcomes so many launches of sides that do not differ have."""
    return 2 ** min(base, new) if paired else math.comb(base + new, new)


def noise(medians: Series, rng: np.random.Generator) -> float:
    """95th percentile of |log r| between random halves of launches under identical conditions;
    needs NOISE_LAUNCHES."""
    half = medians.size // 2
    orders = rng.permuted(np.tile(medians, (SPLITS, 1)), axis=1)
    logs = np.log(
        np.median(orders[:, :half], axis=1) / np.median(orders[:, half : 2 * half], axis=1)
    )
    return float(np.percentile(np.abs(logs), NOISE_PERCENTILE))


# ---------------------------------------------------------------- second opinion


def mann_whitney(first: Series, second: Series) -> float:
    """Two-sided p that neither side tends to be slower: twice the smaller tail of the rank sum, at
    most 1.

    Exact, also with ties (midranks), for up to 60 values; above, the normal limit with the
    correction for ties (Mann & Whitney 1947; Lehmann, Nonparametrics, 1.4).
    """
    ranks = _doubled_ranks(np.concatenate([first, second]))
    observed = int(ranks[: first.size].sum())
    if ranks.size > EXACT:
        total = ranks.size
        centre = first.size * (ranks.size + 1)
        squares = float(((ranks - (total + 1)) ** 2).sum())
        variance = first.size * second.size / (total - 1) * squares / total
        distance = max(abs(observed - centre) - 1, 0)  # continuity: half a rank
        return math.erfc(distance / math.sqrt(2 * variance)) if variance else 1.0
    ways = _rank_sum_counts(tuple(np.sort(ranks).tolist()), first.size)
    tails = ways[: observed + 1].sum(), ways[observed:].sum()
    return min(1.0, float(2 * min(tails) / ways.sum()))


def signed_rank(base: Series, new: Series) -> float:
    """Two-sided p that launches in pairs differ in no direction: twice the smaller tail of the sum
    of the ranks of those ratios above 1, at most 1.

    Exact, also with ties (midranks), for up to 60 pairs that differ; above, the normal limit. Pairs
    that are equal are left out (Wilcoxon 1945; Lehmann, Nonparametrics, 3.1).
    """
    logs = np.log(new / base)
    logs = logs[logs != 0]
    if not logs.size:
        return 1.0
    ranks = _doubled_ranks(np.abs(logs))
    observed = int(ranks[logs > 0].sum())
    total = int(ranks.sum())
    if ranks.size > EXACT:
        distance = max(abs(observed - total / 2) - 1, 0)
        return math.erfc(distance / math.sqrt(float((ranks**2).sum()) / 2))
    ways = _signed_rank_counts(ranks)
    return min(1.0, float(2 * min(ways[: observed + 1].sum(), ways[observed:].sum()) / ways.sum()))


def _signed_rank_counts(ranks: NDArray[np.int64]) -> Series:
    """How many subsets of these ranks have each sum."""
    ways = np.zeros(int(ranks.sum()) + 1)
    ways[0] = 1
    for rank in ranks:
        ways[rank:] += ways[:-rank].copy()
    return ways


def _doubled_ranks(values: Series) -> NDArray[np.int64]:
    """Twice the midranks, which are integers: ties share the sum of their first and last rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    doubled: NDArray[np.int64] = (2 * last - counts + 1)[inverse]
    return doubled


@functools.lru_cache(maxsize=256)  # all cases without ties have the same ranks
def _rank_sum_counts(ranks: tuple[int, ...], size: int) -> Series:
    """How many subsets of `size` ranks have each sum."""
    ways = np.zeros((size + 1, sum(ranks) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    return np.asarray(ways[size], dtype=np.float64)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p: the smallest times m, the next times m - 1 and so on, never falling, at most 1
    (Holm 1979)."""
    values = np.array(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(values.size)
    adjusted[order] = np.maximum.accumulate(
        np.minimum(values[order] * np.arange(values.size, 0, -1), 1.0)
    )
    return list(map(float, adjusted))
