"""How much longer than typical the times of each rank are.

The value of a rank is the lower quartile of the logs of its times, over that of the typical rank.
Its bounds are order statistics, which hold for any distribution of the noise (David and Nagaraja,
Order Statistics, 7.1).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from commbench.cluster.search.pair_times import Cluster, Flags, Indices, Numbers
from commbench.cluster.search.rank_times import RankTimes, typical
from commbench.cluster.search.search_power import QUARTILE, bound_ranks
from commbench.cluster.search.switch_hops import TimesWithoutHop


@dataclass(frozen=True, eq=False)
class Excess:
    """How much longer than typical the times of each rank are, as logs [aspects, ranks]: `value`
    between bounds, from so many `times`. Without any the value is NaN. Where there are too few, the
    bounds are infinite."""

    value: Numbers
    low: Numbers
    high: Numbers
    times: Indices

    def replaced(self, parts: Flags, other: Excess) -> Excess:
        """Where `parts` is set, those of the other."""
        columns = (
            np.where(parts, getattr(other, column.name), getattr(self, column.name))
            for column in fields(self)
        )
        return Excess(*columns)


def excess_of(times: TimesWithoutHop, cluster: Cluster, level: float) -> Excess:
    """`level` is the probability that the lower bound is above the true value; for the upper one it
    is MISSED. The more the times between switches share, the less is a rank's own: what is least
    its own gives the value and the lower bound, what is most its own the upper one."""
    least_own = _excess_of_ranks(times.without_most, cluster, level)
    most_own = _excess_of_ranks(times.without_least, cluster, level)
    return Excess(least_own.value, least_own.low, most_own.high, least_own.times)


def _excess_of_ranks(times: RankTimes, cluster: Cluster, level: float) -> Excess:
    most = int(times.counts.max(initial=0))
    places = np.array([bound_ranks(count, level) for count in range(most + 1)])
    low = times.picked(places[times.counts, 0])
    high = times.picked(places[times.counts, 1])
    value = times.quartile
    usual = typical(value)
    # if one of its partners is slow, the quartile of a good rank's other times is further down
    usual_beside_slow = typical(times.at_share(QUARTILE * (1 - 1 / cluster.partners)))
    # of few nodes the typical one is not well known
    widened_high = value + cluster.widening * (high - value)
    return Excess(
        value - usual,
        np.where(np.isnan(low), -np.inf, low - usual),
        np.where(np.isnan(high), np.inf, widened_high - usual_beside_slow),
        times.counts,
    )
