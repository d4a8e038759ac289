"""What the first rounds of a search say: which ranks are suspects, and how many further rounds
decide about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commbench.cluster.search.pair_times import (
    ASPECTS,
    LATENCY,
    RECEIVES,
    SENDS,
    Cluster,
    Flags,
    Numbers,
)
from commbench.cluster.search.rank_excess import Excess, excess_of
from commbench.cluster.search.rank_times import RankTimes, among_ranks, typical
from commbench.cluster.search.search_power import QUARTILE, Power
from commbench.cluster.search.switch_hops import TimesWithoutHop
from commbench.stats.thresholds import FALSE_ALARMS

METRICS = {"bandwidth": [SENDS, RECEIVES], "latency": [LATENCY]}


@dataclass(frozen=True, eq=False)
class FirstRounds:
    """A rank that takes less than `slow` longer than typical is cleared. A later lower bound above
    `sure` makes a suspect bad. Both are logs. Flags are [aspects, ranks]."""

    times: TimesWithoutHop
    cluster: Cluster
    slow: float
    sure: float

    @cached_property
    def excess(self) -> Excess:
        """How much longer than typical each rank takes."""
        return excess_of(self.times, self.cluster, FALSE_ALARMS)

    @cached_property
    def is_measured(self) -> Flags:
        """All ranks of the aspects that were measured."""
        has_times = self.excess.times > 0
        return np.broadcast_to(has_times.any(axis=1, keepdims=True), has_times.shape)

    @cached_property
    def is_suspect(self) -> Flags:
        """Those that are not cleared."""
        is_cleared = self.excess.high < self.slow
        return np.asarray(self.is_measured & ~is_cleared)

    @cached_property
    def is_outpaced(self) -> Flags:
        """All but the fast ranks, where a quarter of the ranks is faster than the typical one. No
        partner makes a rank fast, so the rest may be slow."""
        # above a value there may be times of slow partners, so the noise is that below it
        noise = self.excess.value - self.excess.low
        fast_quarter = among_ranks(self.excess.value + np.maximum(noise, self.sure), QUARTILE)
        return (fast_quarter < 0) & (self.excess.value > -self.sure)

    @cached_property
    def level(self) -> float:
        """The risk of a false alarm of each suspect (Bonferroni). Without suspects it is that for a
        node that is slow in all aspects of all ranks."""
        suspects = np.count_nonzero(self.is_suspect)
        return FALSE_ALARMS / (suspects or len(ASPECTS) * self.cluster.ranks)

    @cached_property
    def further_visits(self) -> int:
        """How many of each node decide about the suspects."""
        needed = []
        for metric, power in self._powers.items():
            aspects = METRICS[metric]
            suspects = self.is_suspect[aspects]
            values = self.excess.value[aspects][suspects]
            lows = self.excess.low[aspects][suspects]
            needed.append(power.needed(values, lows))
        return max(needed, default=0)

    @property
    def could_see(self) -> dict[str, float]:
        """The smallest slowdown of each metric that is named in 95 % of such runs."""
        return {
            metric: power.could_see(self.further_visits) for metric, power in self._powers.items()
        }

    @cached_property
    def _powers(self) -> dict[str, Power]:
        """Of each measured metric."""
        return {
            metric: Power(
                noise=self._noise(aspects),
                partners=self.cluster.partners,
                widening=self.cluster.widening,
                sure=self.sure,
                slow=self.slow,
                level=self.level,
            )
            for metric, aspects in METRICS.items()
            if self.is_measured[aspects].any()
        }

    def _noise(self, aspects: list[int]) -> Numbers:
        """The differences of all times from the typical lower quartile; those of a suspect from its
        own."""
        times = RankTimes(self.times.without_most.table[aspects])
        usual = np.where(self.is_suspect[aspects], times.quartile, typical(times.quartile))
        noise = times.table - usual[:, :, None]
        return noise[~np.isnan(noise)]
