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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

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
from commbench.stats.levels import LevelTest, spread
from commbench.stats.series import Series
from commbench.stats.thresholds import FEW_LAUNCHES, SMALLEST_CHANGE, SUSPECT_SPREADS

Verdict = Literal["SLOWER", "FASTER", "SUSPECT", "SAME", "UNDECIDED"]
Gate = Literal["FAIL", "SUSPECT", "UNDECIDED", "PASS"]  # of what must not be slower; worst first
GATES: tuple[Gate, ...] = get_args(Gate)


def worst(gates: Iterable[Gate]) -> Gate:
    """Of all of them; UNDECIDED of none."""
    return min(gates, key=GATES.index, default="UNDECIDED")


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
    level_ratio: float = 1.0

    @property
    def is_decidable(self) -> bool:
        """Whether the launches are enough for SLOWER, FASTER or SAME in a single case."""
        return self.ratio.is_known


def compare_launches(
    base: Series,
    new: Series,
    margin: float,
    paired: bool = False,
    level_tests: Sequence[LevelTest] = (),
) -> Comparison:
    """The medians of launches in seconds; `margin`: a relative change that is tolerated. paired:
    launches with the same index ran next to each other. `level_tests`: of their days and hosts,
    where these are not the same."""
    launches = base.size, new.size
    value = ratio(base, new, paired)
    interval = Interval(value, n=min(launches), of="launches")
    p_value = 1.0
    if ALPHA * outcomes(*launches, paired) >= 2:
        interval = ratio_interval(base, new, paired)
        p_value = signed_rank(base, new) if paired else mann_whitney(base, new)
    p_value = max([p_value, *(each.p_value for each in level_tests)])
    level_ratio = _level_ratio(level_tests, SUSPECT_SPREADS)
    is_few = base.size < FEW_LAUNCHES
    suspect_from = math.inf if is_few else suspect_ratio(base, new.size, margin, level_tests)
    return Comparison(
        float(np.median(base)),
        float(np.median(new)),
        interval,
        p_value,
        suspect_from,
        launches,
        level_ratio,
    )


def suspect_ratio(
    base: Series,
    new_launches: int,
    margin: float,
    level_tests: Sequence[LevelTest] = (),
    spreads: float = SUSPECT_SPREADS,
) -> float:
    """The ratio of medians from which NEW, of so many launches, is suspect; needs two launches."""
    distance = spreads * spread(np.log(base)) * math.sqrt(1 / new_launches + 1 / base.size)
    return max(1 + margin, math.exp(distance), _level_ratio(level_tests, spreads))


def _level_ratio(level_tests: Sequence[LevelTest], spreads: float) -> float:
    """What days and hosts explain, with the risk of so many spreads."""
    risk = math.erfc(spreads / math.sqrt(2))
    return math.exp(max([0.0, *(each.distance(risk) for each in level_tests)]))


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
    if value > comparison.suspect_ratio or low > max(1 + margin, comparison.level_ratio):
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
