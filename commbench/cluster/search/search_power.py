"""What rounds of a search can find: the bounds of a quartile, the slowdowns that they name, and how
many visits are needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from commbench.cluster.search.pair_times import Numbers
from commbench.stats.thresholds import MISSED

QUARTILE = 0.25
FURTHER_VISITS = range(24, 121, 8)
NAMED = 0.99  # the probability that a slow node is named: decides on the visits
SEEN = 0.95  # the same for the slowdown that a run could see
BISECTIONS = 30


def bound_ranks(count: int, level: float) -> tuple[int, int]:
    """The ranks of the bounds of a quartile among so many times; -1 where there are too few."""
    at_most = _at_most(count, QUARTILE)
    low = int(np.count_nonzero(at_most <= level)) - 1
    high = int(np.count_nonzero(at_most < 1 - MISSED))
    return low, high if high < count else -1


@lru_cache(maxsize=4096)
def _at_most(count: int, share: float) -> Numbers:
    """The probability that at most 0, 1 ... count of so many times are below a quantile."""
    chances = [
        math.comb(count, below) * share**below * (1 - share) ** (count - below)
        for below in range(count + 1)
    ]
    return np.cumsum(chances)


@dataclass(frozen=True, eq=False)
class Power:
    """`noise` are differences of times from the lower quartile of their rank. A slow node takes
    `slow` longer, and is named if its lower bound at `level` is above `sure`; both are logs."""

    noise: Numbers
    partners: int
    widening: float
    sure: float
    slow: float
    level: float

    def needed(self, values: Numbers, lows: Numbers) -> int:
        """How many visits decide about suspects with these values and lower bounds. Where all of
        them seem bad, those that name the least slow one; else those that name a slow node and
        clear a good one."""
        if not values.size:
            return 0
        if (values > self.sure).all():
            return self.naming(max(self.slow, float(lows.min())))
        return max(self.naming(self.slow), _first_enough(self._clears))

    def could_see(self, visits: int) -> float:
        """The smallest slowdown that is named with the probability SEEN, by so many visits or those
        that a suspect would get."""
        visits = max(visits, self.naming(self.slow))
        return math.expm1(max(self.slow, self.least_slowdown(visits, SEEN)))

    def naming(self, slowdown: float) -> int:
        """How many visits name a node that is slower by this log."""
        return _first_enough(lambda visits: self.least_slowdown(visits, NAMED) <= slowdown)

    def _clears(self, visits: int) -> bool:
        """Whether so many clear a good node, also if one of its partners is slow."""
        _, rank = bound_ranks(visits, self.level)
        times = int(visits * (1 - 1 / self.partners))
        below = float(np.mean(self.noise < self.slow))
        return 0 <= rank < times and bool(_at_most(times, below)[rank] <= 1 - NAMED)

    def least_slowdown(self, visits: int, chance: float) -> float:
        """The log of the smallest slowdown that so many visits name with this probability."""
        rank, _ = bound_ranks(visits, self.level)
        if rank < 0:
            return math.inf
        # of the times of a slow node, this share may lie below the bound that they must exceed
        share = _largest_share(visits, rank, chance)
        below, typical = np.quantile(self.noise, (share, self._typical_share))
        return float(self.sure + typical - self.widening * below)

    @property
    def _typical_share(self) -> float:
        """Where the quartile of a good node's other times is, if one of its partners is slow."""
        return min(QUARTILE / (1 - 1 / self.partners), 0.5)


def _first_enough(is_enough: Callable[[int], bool]) -> int:
    return next((visits for visits in FURTHER_VISITS if is_enough(visits)), FURTHER_VISITS[-1])


@lru_cache(maxsize=4096)
def _largest_share(count: int, rank: int, chance: float) -> float:
    """The largest probability of a single time to be below, with which at most `rank` of them are
    so with this chance."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _at_most(count, middle)[rank] >= chance:
            low = middle
        else:
            high = middle
    return low
