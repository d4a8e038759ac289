"""Between which times healthy launches lie: a prediction interval, not that of a median.

If the logs of the medians of healthy launches are normal: Of n launches with mean c and
standard deviation s, the mean of k future ones lies above c + t(1 - a; n - 1) s sqrt(1/k + 1/n)
with probability a (Hahn and Meeker, Statistical Intervals, ch. 4: the mean of k future
observations; k = 1 is a single one).

Launches of one day, or on the same hosts, may be more alike than others. With G such groups in the
store, of m launches each, and g future groups of l launches, the variance of the difference of the
means of groups is

    S2 (1/g + 1/G) + W2 max(0, 1/l - 1/m) / g

S2 is the variance of the means of the G groups, W2 that within groups; m and l are harmonic means
(analysis of unweighted means: Thomas and Hultquist, Annals of Statistics 6 (1978) 582). Its degrees
of freedom are Satterthwaite's (Biometrics Bulletin 2 (1946) 110). With one launch a group, this is
the formula above for g future launches.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.cluster.baseline_store import HealthyLaunch
from commbench.results.columns import grouped
from commbench.stats.difference import MOST_LAUNCHES

Grouping = Literal["launches", "days", "sets of hosts"]
GROUP_OF: dict[Grouping, Callable[[HealthyLaunch], str]] = {
    "days": lambda launch: launch.day,
    "sets of hosts": lambda launch: launch.hosts,
}
DEGREES_STEPS = 10  # of a degree of freedom: rounded down, so that quantiles are computed once
# By simulation, exponential logs are then beyond the limit in at most the stated share of cases
# (risks of 1 % to 0.05 %, 3 to 30 healthy launches, 1 to 5 new ones).
SKEWED_SHARE = 1 / 3
PRECISION = 1e-14
MOST_TERMS = 500  # of a continued fraction


def geometric_mean_s(launches: Sequence[HealthyLaunch]) -> float:
    """Of their medians, in seconds."""
    return statistics.geometric_mean(launch.median_s for launch in launches)


@dataclass(frozen=True)
class PredictedShift:
    """How far future healthy launches lie from those of a store, as logs of times.

    `shift`: the mean of the new launches minus that of the store. `error`: the standard deviation
    of `shift` between healthy launches, with `degrees` of freedom. `spread`: the standard deviation
    of a group of one launch, and how many groups there are on each side.
    """

    grouping: Grouping
    shift: float
    error: float
    degrees: float
    spread: float
    groups: int
    new_groups: int

    @property
    def fewest(self) -> int:
        """The number of groups of the side that has fewer."""
        return min(self.groups, self.new_groups)

    def half_width(self, risk: float) -> float:
        """What `shift` exceeds with this probability, if the new launches are healthy."""
        return t_quantile(1 - risk, self.degrees) * self.error

    def groups_needed(self, gap: float, risk: float) -> int | None:
        """On each side, until the half width is at most `gap`, if the spread stays as it is; more
        than there are, and None for more than MOST_LAUNCHES."""
        for count in range(self.fewest + 1, MOST_LAUNCHES + 1):
            groups = max(count, self.groups)
            inverse = 1 / groups + 1 / max(count, self.new_groups)
            if t_quantile(1 - risk, groups - 1) * self.spread * math.sqrt(inverse) <= gap:
                return count
        return None


def predictions(
    healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]
) -> list[PredictedShift]:
    """One that takes all launches as independent, and one for each grouping of which the store has
    several groups. Needs two healthy launches."""
    results = [
        _prediction(
            "launches", [[_log_s(each)] for each in healthy], [[_log_s(each)] for each in new]
        )
    ]
    for grouping, group_of in GROUP_OF.items():
        stored = [list(map(_log_s, group)) for group in grouped(healthy, group_of).values()]
        if len(stored) > 1:
            future = [list(map(_log_s, group)) for group in grouped(new, group_of).values()]
            results.append(_prediction(grouping, stored, future))
    return results


def _log_s(launch: HealthyLaunch) -> float:
    return math.log(launch.median_s)


def _prediction(
    grouping: Grouping, stored: Sequence[Sequence[float]], new: Sequence[Sequence[float]]
) -> PredictedShift:
    """By the formula above; `stored` and `new` have the logs of each group."""
    means = [statistics.fmean(group) for group in stored]
    groups = len(stored)
    grand_mean = statistics.fmean(means)
    between = sum((mean - grand_mean) ** 2 for mean in means) / (groups - 1)
    inside = [
        (value - mean) ** 2 for group, mean in zip(stored, means, strict=True) for value in group
    ]
    inside_degrees = len(inside) - groups
    within = sum(inside) / inside_degrees if inside_degrees else 0.0
    inverse_size = statistics.fmean(1 / len(group) for group in stored)
    new_inverse_size = statistics.fmean(1 / len(group) for group in new)
    terms = [(between * (1 / len(new) + 1 / groups), groups - 1)]
    if inside_degrees:
        terms.append(
            (within * max(0.0, new_inverse_size - inverse_size) / len(new), inside_degrees)
        )
    variance = sum(value for value, _ in terms)
    square = sum(value**2 / degrees for value, degrees in terms)
    return PredictedShift(
        grouping,
        statistics.fmean(statistics.fmean(group) for group in new) - grand_mean,
        error=math.sqrt(variance),
        degrees=variance**2 / square if square else float(groups - 1),
        spread=math.sqrt(between + within * max(0.0, 1 - inverse_size)),
        groups=groups,
        new_groups=len(new),
    )


def skewed_limit(healthy: Sequence[HealthyLaunch], new_launches: int, risk: float) -> float:
    """The log of the time that the geometric mean of new healthy launches exceeds with this
    probability, if the logs lie above a least value by an exponential distribution.

    The mean of k future ones above the least value, over their scale, has an F distribution with 2k
    and 2(n - 1) degrees of freedom (Lawless, Technometrics 13 (1971) 725). Here the scale is the
    standard deviation, which makes the limit narrower if the logs are normal after all; for that,
    SKEWED_SHARE of the risk is taken.
    """
    logs = list(map(_log_s, healthy))
    mean = statistics.fmean(logs)
    count = len(logs)
    spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / (count - 1))
    quantile = f_quantile(SKEWED_SHARE * risk, 2 * new_launches, 2 * (count - 1))
    return mean + spread * (quantile - 1)


# ---------------------------------------------------------------- Student's t and Fisher's F


def t_quantile(probability: float, degrees: float) -> float:
    """The quantile of Student's t distribution; degrees of freedom are rounded down to tenths."""
    return _t_quantile(probability, max(1, math.floor(degrees * DEGREES_STEPS + PRECISION)))


@functools.lru_cache(maxsize=4096)
def _t_quantile(probability: float, tenths: int) -> float:
    if probability < 0.5:
        return -_t_quantile(1 - probability, tenths)
    degrees = tenths / DEGREES_STEPS

    def tail(value: float) -> float:
        x = degrees / (degrees + value * value)
        return 0.5 * _incomplete_beta(degrees / 2, 0.5, x)

    return _where_tail_is(tail, 1 - probability)


@functools.lru_cache(maxsize=4096)
def f_quantile(risk: float, numerator: int, denominator: int) -> float:
    """What the F distribution with these degrees of freedom exceeds with this probability."""

    def tail(value: float) -> float:
        x = denominator / (denominator + numerator * value)
        return _incomplete_beta(denominator / 2, numerator / 2, x)

    return _where_tail_is(tail, risk)


def _where_tail_is(tail: Callable[[float], float], risk: float) -> float:
    """The value above 0 where a falling function is `risk`, by bisection."""
    low = 0.0
    high = 1.0
    while tail(high) > risk:
        low = high
        high *= 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if tail(middle) > risk:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """By its continued fraction (Abramowitz and Stegun 26.5.8) in Lentz's method, on the side of
    the mean where it converges fast."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    numerator = 1.0
    denominator = 0.0
    value = 1.0
    for step in range(MOST_TERMS):
        half = step // 2
        if step == 0:
            coefficient = 1.0
        elif step % 2 == 0:
            coefficient = half * (b - half) * x / ((a + step - 1) * (a + step))
        else:
            coefficient = -(a + half) * (a + b + half) * x / ((a + step - 1) * (a + step))
        denominator = 1 / (1 + coefficient * denominator)
        numerator = 1 + coefficient / numerator
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < PRECISION:
            break
    return front * (value - 1) / a
