"""Rank statistics of a series of times: the interval of the median, the end of the warm-up,
warnings.

A `Series` has one time per repetition, in seconds and in the order of measurement. Nothing is ever
removed from it, nothing assumes a normal distribution, and autocorrelation of the repetitions
widens the interval (Hoefler & Belli, SC'15; Le Boudec, Performance Evaluation, ch. 2).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

Z95 = 1.96  # standard normal quantile of a two-sided 95 % interval
# the fewest repetitions with a 95 % interval of the median: [min, max] at 96.9 %
SMALLEST_INTERVAL = 6
CLOCK_STEPS_S = 2e-9  # by how much equal times differ where both their stamps are in nanoseconds
EXACT_RANKS = 200  # repetitions up to which ranks come from the binomial, not from its normal limit
INDEPENDENT = 0.99  # share n_eff/n from which a series counts as independent
# AR(1) 0.8 stopped at n = 500: lifts coverage from 0.89 to 0.94; independent: no effect
LAG_PENALTY = 16.0
TAIL_RISK = 0.05  # a percentile is given if the sample maximum lies above it with 95 % certainty

STEADY = 0.02  # relative difference of medians that ends the warm-up
DRIFT = 0.05  # relative difference of medians
MSER_BATCH = 5
# repetitions per batch (the 5 of MSER-5); last batches, where the criterion degenerates
MSER_TAIL = 5
BINS = 32
BIN_LOG = math.log(1.02)  # bins of the histogram and the least width: modes 5 % apart are one
MODE_SHARE = 0.05  # least share of the repetitions in a mode
FAR_SHARE = 0.1  # and in one of two that are far apart
MEAN_GAP = 0.20  # relative gap between mean and median that asks for an explanation ...
GROUP_SIZE = 5
GROUP_LOG = math.log(2)  # ... which is so many repetitions beyond an empty stretch of factor 2

# ---------------------------------------------------------------- certainty of the median


def median_of(values: Series) -> float:
    """The value of np.median for one dimension, in a fifth of its time."""
    upper = values.size // 2
    lower = upper - 1 + values.size % 2
    ordered = np.partition(values, (lower, upper))
    return float((ordered[lower] + ordered[upper]) / 2)


def _autocorrelation(series: Series) -> Series:
    """The autocorrelation at lags 0 to n - 1, by an FFT padded against wrap-around; empty for a
    constant series."""
    if np.ptp(series) == 0:
        return np.empty(0)
    spectrum = np.fft.rfft(series - series.mean(), 1 << (2 * series.size - 1).bit_length())
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[: series.size]
    return np.asarray(covariance / covariance[0], dtype=np.float64)


def lag1(values: Series) -> float:
    """Correlation of a repetition's time with the next one's; 0 for a constant series."""
    correlation = _autocorrelation(values)
    return float(correlation[1]) if correlation.size else 0.0


def effective_size(values: Series) -> float:
    """How many independent repetitions would determine the median as well as these; between 1 and
    n.

    n_eff = n / (1 + excess): twice the sum of the autocorrelations of 1[x <= median], which
    outliers can't reach, in pairs while positive (Geyer 1992). Estimated from M lags the excess is
    noisy and too low, and a stop rule picks the moments when it is: hence times 1 + 16 M/n. Form:
    fixed-b theory (Kiefer & Vogelsang 2005); 16: by simulation.
    """
    n = values.size
    if np.ptp(values) <= CLOCK_STEPS_S:
        return float(n)
    correlation = _autocorrelation((values <= median_of(values)).astype(np.float64))
    pairs = correlation[: correlation.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    lags = 2 * (int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else pairs.size)
    excess = max(2 * float(correlation[:lags].sum()) - 2, 0.0)
    return max(n / (1 + excess * (1 + LAG_PENALTY * lags / n)), 1.0)


@lru_cache(maxsize=1024)
def binomial_rank(n: int, z: float) -> int:
    """Largest l with P(Binomial(n, 1/2) < l) within one tail: the l-th lowest and highest of n
    values enclose their median with the confidence of z. 0 if there is none."""
    tail = math.erfc(z / math.sqrt(2)) / 2 * 2**n
    below = rank = 0
    while (below := below + math.comb(n, rank)) <= tail:
        rank += 1
    return rank


def _interval(values: Series, effective: float, z: float) -> tuple[float, float]:
    n = values.size
    rank = 1
    if effective >= INDEPENDENT * n and n <= EXACT_RANKS:
        rank = binomial_rank(n, z)
    elif effective >= SMALLEST_INTERVAL:
        rank = math.floor(n / 2 - z * n / (2 * math.sqrt(effective)))
    ends = max(rank, 1) - 1, n - max(rank, 1)
    low, high = np.partition(values, ends)[list(ends)]
    return float(low), float(high)


def median_interval(
    values: Series, z: float = Z95, effective: float | None = None
) -> tuple[float, float] | None:
    """Order statistics around the median, in seconds; None below 6 repetitions. `effective` is
    n_eff, where known.

    Exact binomial ranks for up to 200 independent repetitions, else n/2 -+ z n / (2 sqrt(n_eff)) .
    Where the ranks would lie outside the sample, or n_eff < 6, it is [min, max]: all that is known.
    """
    if values.size < SMALLEST_INTERVAL:
        return None
    return _interval(values, effective_size(values) if effective is None else effective, z)


def half_width(values: Series, z: float = Z95) -> float:
    """Half of the corrected interval relative to the median; infinite without an interval or if the
    median is 0."""
    interval = median_interval(values, z)
    median = median_of(values) if interval else 0.0
    return (interval[1] - interval[0]) / 2 / median if interval and median else math.inf


def percentile(values: Series, p: float) -> float | None:
    """Nearest rank: the ceil(p n)-th smallest. None if the sample maximum is not a 95 % upper bound
    of it.

    That needs n >= ln 0.05 / ln p: 29 repetitions for 0.9, 59 for 0.95, 299 for 0.99, 2995 for
    0.999.
    """
    if values.size < math.log(TAIL_RISK) / math.log(p):
        return None
    index = math.ceil(p * values.size - 1e-9) - 1  # 0.07 * 100 is a little more than 7 in binary
    return float(np.partition(values, index)[index])


def tukey_outliers(values: Series) -> int:
    """How many lie more than 1.5 interquartile ranges outside the quartiles (Tukey 1977), which are
    interpolated."""
    low, high = np.percentile(values, (25, 75))
    fence = 1.5 * (high - low)
    return int(((values < low - fence) | (values > high + fence)).sum())


def summarise(values: Series) -> dict[str, float | None]:
    """Statistics of at least one repetition in seconds, by column; None if there are too few
    repetitions for one.

    Only locations: none of them decreases if a repetition takes longer.
    """
    return {
        "min_s": float(values.min()),
        "mean_s": float(values.mean()),
        "p90_s": percentile(values, 0.9),
        "p95_s": percentile(values, 0.95),
        "p99_s": percentile(values, 0.99),
        "p999_s": percentile(values, 0.999),
        "max_s": float(values.max()),
    }


# ---------------------------------------------------------------- the end of the warm-up


def steady(values: Series) -> bool:
    """Whether the warm-up has ended: the median of its last third is within 2 % of that of the
    middle third, or in the interval of the middle third."""
    third = values.size // 3
    if third < 3:
        return False
    middle = values[-2 * third : -third]
    last = median_of(values[-third:])
    low, high = median_interval(middle) or (math.inf, -math.inf)
    return bool(low <= last <= high or abs(last - median_of(middle)) <= STEADY * median_of(middle))


# ---------------------------------------------------------------- warnings


def multimodal(values: Series) -> bool:
    """Whether the times have several typical values, so that the median may represent none of
    them."""
    return _far_group(values) or _valley(values) is not None


class Modes(NamedTuple):
    """Two typical times of a series: the medians of its faster and of its slower part, and the
    share of the slower one."""

    fast: float
    slow: float
    slow_share: float


def far_modes(values: Series) -> Modes | None:
    """The two typical times, where they are at least a factor of 2 apart and each has at least a
    tenth of the repetitions; None elsewhere."""
    split = _valley(values)
    if split is None:
        return None
    slow = values[values > split]
    modes = Modes(median_of(values[values <= split]), median_of(slow), slow.size / values.size)
    is_far = modes.slow >= math.exp(GROUP_LOG) * modes.fast
    return modes if is_far and FAR_SHARE <= modes.slow_share <= 1 - FAR_SHARE else None


def mser5_cut(values: Series) -> int:
    """Repetitions of the initial transient: those whose removal leaves the most certain mean
    (MSER-5, White 1997).

    The cut d of k batches minimises the sum of squares of the rest / (k - d)^2; 0 for fewer than 10
    batches.
    """
    count = values.size // MSER_BATCH
    if count < 2 * MSER_TAIL:
        return 0
    batches = values[: count * MSER_BATCH].reshape(count, MSER_BATCH).mean(axis=1)
    backwards = (batches - batches.mean())[::-1]
    left = np.arange(1, count + 1)
    squares = np.cumsum(backwards**2) - np.cumsum(backwards) ** 2 / left
    return int(np.argmin((squares / left**2)[::-1][: count - MSER_TAIL + 1])) * MSER_BATCH


def drifting(values: Series) -> bool:
    """Whether the halves differ, or the parts before and after a late MSER-5 cut: their medians are
    more than 5 % apart and the intervals do not overlap.

    One straggler moves that cut on a stationary series, so it says where to look but decides
    nothing.
    """
    half = values.size // 2
    for at in {half, max(half, mser5_cut(values))}:
        before = values[:at]
        after = values[at:]
        if min(before.size, after.size) < SMALLEST_INTERVAL:
            continue
        if abs(median_of(after) - median_of(before)) <= DRIFT * median_of(before):
            continue
        first, second = (_interval(part, _trendless_size(part), Z95) for part in (before, after))
        if first[1] < second[0] or second[1] < first[0]:
            return True
    return False


def _trendless_size(values: Series) -> float:
    """n_eff without the linear trend of the ranks: else a drift would pass as autocorrelation."""
    ranks = np.argsort(np.argsort(values, kind="stable")).astype(np.float64)
    time = np.arange(values.size) - (values.size - 1) / 2
    return effective_size(ranks - (time @ ranks) / (time @ time) * time)


def _far_group(values: Series) -> bool:
    """Whether a separate group of slow repetitions moves the mean away from the median.

    The gap alone proves nothing: every exponential distribution has one of 44 %.
    """
    median = median_of(values)
    slow = np.sort(values[values >= median])
    if median <= 0 or values.mean() <= (1 + MEAN_GAP) * median:
        return False
    return bool((np.diff(np.log(slow / median))[: 1 - GROUP_SIZE] > GROUP_LOG).any())


def _valley(values: Series) -> float | None:
    """The deepest valley of the log histogram that chance does not explain.

    Of the central 96 %, so that no outlier squeezes all modes into one bin; bins at least 3 clock
    ticks wide, which would make a comb of any series. Windows of 3 bins, least of them below half
    of the lower peak and 3 standard deviations of counts below it, with at least 5 % of the
    repetitions on each side.
    """
    low, high = np.quantile(values, [0.02, 0.98], method="nearest")
    if low <= 0:
        return None
    logs = np.log(values[(values >= low) & (values <= high)] / low)
    tick = float(np.min(np.diff(np.unique(logs)), initial=math.inf))
    width = max(BIN_LOG, float(logs.max()) / BINS, 3 * tick)
    counts = np.bincount((logs / width).astype(np.int64))
    windows = np.convolve(counts, np.ones(3))
    peaks = np.minimum(np.maximum.accumulate(windows), np.maximum.accumulate(windows[::-1])[::-1])
    deep = (windows < peaks / 2) & (peaks - windows > 3 * np.sqrt(peaks + windows))
    left = np.cumsum(np.pad(counts, (0, 2))) / logs.size
    valleys = np.flatnonzero(deep & (np.minimum(left, 1 - left) >= MODE_SHARE))
    if not valleys.size:
        return None
    deepest = valleys[np.argmin((windows / peaks)[valleys])]
    return float(low * math.exp((deepest - 0.5) * width))  # the middle of the window
