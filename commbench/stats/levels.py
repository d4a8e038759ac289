"""How far apart two sides of launches are because their days, or their hosts, differ.

    log t = level of the case + level of the group + noise of the launch

A group is a day, or a set of hosts; its level is the median of its launches, and that of a side the
mean over its groups. How much levels differ is taken from BASE. Few groups do not show it: until
they do, the standard deviation is taken to be USUAL_LEVELS beside the noise, or what they show
where that is more. Student's distribution says from when on what they show is the better limit.

Means and standard deviations are trimmed, so that single disturbed launches and days count little.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from commbench.stats.series import Series, median_of
from commbench.stats.thresholds import USUAL_LEVELS

TRIMMED = 6  # one of so many values is left out at each end
BISECTIONS = 60


@dataclass(frozen=True)
class GroupedLaunches:
    """Launches of a side: the time and the group of each."""

    times: Series
    groups: Sequence[str]

    @functools.cached_property
    def by_group(self) -> dict[str, Series]:
        """The logs of the times of each group."""
        logs = dict[str, list[float]]()
        for group, log in zip(self.groups, np.log(self.times).tolist(), strict=True):
            logs.setdefault(group, []).append(log)
        return {group: np.array(own) for group, own in logs.items()}

    @functools.cached_property
    def levels(self) -> Series:
        return np.array([*map(median_of, self.by_group.values())])

    @property
    def single_share(self) -> float:
        """The share of the variance of a launch's noise that the level of a group has."""
        return float(np.mean([1 / own.size for own in self.by_group.values()]))

    @property
    def between(self) -> float:
        """The standard deviation of the levels; 0 for a single group."""
        return spread(self.levels) if self.levels.size > 1 else 0.0

    @property
    def within(self) -> float:
        """The standard deviation of the launches of a group; 0 where no group has several."""
        residuals = [
            (own - level) * math.sqrt(own.size / (own.size - 1))
            for own, level in zip(self.by_group.values(), self.levels, strict=True)
            if own.size > 1
        ]
        return spread(np.concatenate(residuals)) if residuals else 0.0


@dataclass(frozen=True)
class LevelTest:
    """Whether two sides are farther apart than their groups explain.

    `log_ratio`: of the level of NEW over that of BASE, by the value of NEW that is closest to BASE,
    so that a single disturbance is no change. `usual` and `shown`: its standard deviation
    where nothing but groups differs, with what is usual of them and with what BASE shows.
    `between`: the standard deviation of the levels of BASE; `degrees`: of freedom of it, 0 for a
    single group.
    """

    log_ratio: float
    usual: float
    shown: float
    between: float
    degrees: int

    def distance(self, risk: float) -> float:
        """What `log_ratio` exceeds, in either direction, with this probability."""
        limit = NormalDist().inv_cdf(1 - risk / 2) * self.usual
        if not self.degrees:
            return limit
        return min(limit, student_quantile(risk, self.degrees) * self.shown)

    @property
    def p_value(self) -> float:
        """The probability of a ratio at least as far from 1."""
        p_value = math.erfc(abs(self.log_ratio) / self.usual / math.sqrt(2))
        if not self.degrees or not self.shown:
            return p_value
        return min(p_value, student_p(self.log_ratio / self.shown, self.degrees))


def level_test(base: GroupedLaunches, new: GroupedLaunches) -> LevelTest | None:
    """None where both sides have the same groups."""
    if base.by_group.keys() == new.by_group.keys():
        return None
    groups, new_groups = len(base.by_group), len(new.by_group)
    shared = len(base.by_group.keys() & new.by_group.keys())
    apart = 1 / groups + 1 / new_groups - 2 * shared / (groups * new_groups)
    middle = _middle(base.levels)
    # A change moves all launches of NEW, and with them each of three values. One disturbance moves
    # some: a disturbed day the mean of few days, of which none is trimmed; a disturbed launch of
    # two the level of its day, and so the median of two days. The value closest to BASE counts: it
    # is far only where all three are.
    values = float(_middle(new.levels).mean()), median_of(new.levels), median_of(np.log(new.times))
    log_ratio = min((value - float(middle.mean()) for value in values), key=abs)
    within = base.within
    usual = max(base.between, math.hypot(USUAL_LEVELS, within * math.sqrt(base.single_share)))
    # groups of fewer launches than those of BASE have more noise
    noise = within * math.sqrt(max(0.0, new.single_share - base.single_share) / new_groups)
    return LevelTest(
        log_ratio,
        math.hypot(usual * math.sqrt(apart), noise),
        math.hypot(base.between * math.sqrt(apart), noise),
        base.between,
        middle.size - 1,
    )


def spread(values: Series) -> float:
    """The standard deviation of at least two values, from the range of the middle ones over the
    range expected of a normal distribution (Blom, Statistical Estimates, 1958: (i - 3/8) / (n +
    1/4))."""
    middle = _middle(values)
    count = values.size
    last = (count + middle.size) / 2
    expected = 2 * NormalDist().inv_cdf((last - 0.375) / (count + 0.25))
    return float(middle[-1] - middle[0]) / expected


def _middle(values: Series) -> Series:
    """The values in order, without one of TRIMMED at each end."""
    left_out = values.size // TRIMMED
    return np.sort(values)[left_out : values.size - left_out]


# ---------------------------------------------------------------- Student's distribution


def student_p(value: float, degrees: int) -> float:
    """The probability of a value as far from 0 (Abramowitz & Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(value) / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(2 if is_odd else 1, degrees, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    inside = (angle + sine * total) * 2 / math.pi if is_odd else sine * total
    return max(0.0, 1 - inside)


@functools.lru_cache(maxsize=1024)
def student_quantile(risk: float, degrees: int) -> float:
    """The value that is exceeded, in either direction, with this probability."""
    low, high = 0.0, 1.0
    while student_p(high, degrees) > risk:
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) > risk else (low, middle)
    return high
