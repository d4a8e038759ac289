"""Whether NEW is slower than BASE, from the medians of launches: the one test of compare, ab,
accept and watch.

SLOWER     p, corrected for all cases (Holm), is at most alpha; the interval of the ratio is above
           a change that matters at all; the ratio is beyond the margin
FASTER     the same in the other direction
SUSPECT    slower, but not for certain: the ratio is beyond the margin and SUSPECT_SPREADS spreads
           of the launches of BASE; or its interval is beyond the margin, and p is not small enough
SAME       the interval is within the margin
UNDECIDED  none of these

The spread is that of the middle launches of BASE, so that single disturbed launches do not widen
it. docs/method.md has the power and the false alarms of the test, by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from commbench.stats.difference import (
    ALPHA,
    holm,
    mann_whitney,
    outcomes,
    ratio,
    ratio_interval,
    signed_rank,
)
from commbench.stats.interval import Interval
from commbench.stats.launches import FEW_LAUNCHES
from commbench.stats.series import Series
from commbench.stats.thresholds import SMALLEST_CHANGE, SUSPECT_SPREADS

Verdict = Literal["SLOWER", "FASTER", "SUSPECT", "SAME", "UNDECIDED"]
TRIMMED = 6  # one of so many launches is left out at each end


@dataclass(frozen=True)
class Comparison:
    """Two sides of launches. `base_s`, `new_s`: their medians. `ratio`: time of NEW / time of BASE,
    without an interval where the launches are too few for 95 %.

    `p_value`: two-sided; 1 where no outcome could be below 5 %. `suspect_ratio`: the ratio from
    which NEW is suspect; infinite with fewer than FEW_LAUNCHES launches of BASE.
    """

    base_s: float
    new_s: float
    ratio: Interval
    p_value: float
    suspect_ratio: float
    launches: tuple[int, int]

    @property
    def is_decidable(self) -> bool:
        """Whether the launches are enough for SLOWER, FASTER or SAME in a single case."""
        return self.ratio.is_known


def compare_launches(base: Series, new: Series, margin: float, paired: bool = False) -> Comparison:
    """The medians of launches in seconds; `margin`: a relative change that is tolerated. paired:
    launches with the same index ran next to each other."""
    launches = base.size, new.size
    value = ratio(base, new, paired)
    interval = Interval(value, n=min(launches), of="launches")
    p_value = 1.0
    if ALPHA * outcomes(*launches, paired) >= 2:
        interval = ratio_interval(base, new, paired)
        p_value = signed_rank(base, new) if paired else mann_whitney(base, new)
    return Comparison(
        float(np.median(base)),
        float(np.median(new)),
        interval,
        p_value,
        suspect_ratio(base, new.size, margin) if base.size >= FEW_LAUNCHES else math.inf,
        launches,
    )


def suspect_ratio(
    base: Series, new_launches: int, margin: float, spreads: float = SUSPECT_SPREADS
) -> float:
    """The ratio of medians from which NEW, of so many launches, is suspect; needs two launches."""
    distance = spreads * spread(base) * math.sqrt(1 / new_launches + 1 / base.size)
    return math.exp(max(math.log1p(margin), distance))


def spread(times: Series) -> float:
    """The standard deviation of the logs of times, from the range of the middle ones over the range
    expected of a normal distribution (Blom, Statistical Estimates, 1958: (i - 3/8) / (n + 1/4))."""
    count = times.size
    left_out = count // TRIMMED
    ordered = np.sort(np.log(times))
    expected = 2 * NormalDist().inv_cdf((count - left_out - 0.375) / (count + 0.25))
    return float(ordered[count - 1 - left_out] - ordered[left_out]) / expected


def verdict(
    comparison: Comparison, p_adjusted: float, margin: float, alpha: float = ALPHA
) -> Verdict:
    """By the rule above; `p_adjusted`: its p, corrected for all cases."""
    value = comparison.ratio.value
    low, high = comparison.ratio.low, comparison.ratio.high
    least = 1 + min(margin, SMALLEST_CHANGE)
    if p_adjusted <= alpha and low > least and value > 1 + margin:
        return "SLOWER"
    if p_adjusted <= alpha and high < 1 / least and value < 1 / (1 + margin):
        return "FASTER"
    if value > comparison.suspect_ratio or low > 1 + margin:
        return "SUSPECT"
    is_within = 1 / (1 + margin) <= low and high <= 1 + margin
    return "SAME" if is_within else "UNDECIDED"


def adjusted_p(comparisons: Sequence[Comparison]) -> list[float]:
    """The p of each of the cases of a suite, corrected for all that are decidable (Holm)."""
    decidable = [each for each in comparisons if each.is_decidable]
    adjusted = iter(holm([each.p_value for each in decidable]))
    return [next(adjusted) if each.is_decidable else 1.0 for each in comparisons]


def verdicts(
    comparisons: Sequence[Comparison], margin: float, alpha: float = ALPHA
) -> list[Verdict]:
    """The verdict of each of the cases of a suite."""
    return [
        verdict(each, p_adjusted, margin, alpha)
        for each, p_adjusted in zip(comparisons, adjusted_p(comparisons), strict=True)
    ]
