"""Which nodes are slow, from the times of pairs of nodes that meet in rounds.

A node's value is the lower quartile of the logs of its times, over that of the typical node: what
it sends, what it receives, and its latency. A slow partner makes a few of them slow and none fast.
So nodes that are faster than the typical one show that most are slow.
The bounds of a quartile are order statistics, which hold for any distribution of the noise (David
and Nagaraja, Order Statistics, 7.1).

The first rounds clear the nodes whose upper bound is below `slowdown`. The others are suspects, and
only rounds that follow decide about them: a suspect is bad if its lower bound there is above
`SURE_SHARE` of `slowdown`. Their levels are divided among the suspects (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from commbench.cluster.search.pair_times import (
    ASPECTS,
    LATENCY,
    RECEIVES,
    SENDS,
    Cluster,
    Flags,
    Indices,
    Numbers,
    PairTimes,
)
from commbench.cluster.search.rank_times import RankTimes, among_ranks, typical
from commbench.cluster.search.search_power import QUARTILE, Power, bound_ranks
from commbench.cluster.search.switch_hops import TimesWithoutHop, without_hop
from commbench.stats.thresholds import FALSE_ALARMS, SLOW_SWITCH_SHARE, SURE_SHARE
from commbench.stats.verdict import Verdict

METRICS = {"bandwidth": [SENDS, RECEIVES], "latency": [LATENCY]}


@dataclass(frozen=True, eq=False)
class Excess:
    """How much longer than typical the times of each rank are, as logs [aspects, ranks]: `value`
    between bounds, from so many `times`. NaN and infinite bounds stand for too few times."""

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


@dataclass(frozen=True, eq=False)
class Findings:
    """`is_bad` and `is_undecided` [aspects, ranks] with the evidence for them; `is_outpaced`
    [aspects]: a quarter of the ranks is faster than the typical one. `could_see` has the smallest
    slowdown of each metric that is named in 95 % of such runs; `further_visits` are those that each
    node needs after the first rounds."""

    cluster: Cluster
    excess: Excess
    is_bad: Flags
    is_undecided: Flags
    is_outpaced: Flags
    could_see: dict[str, float]
    further_visits: int

    def verdicts(self) -> tuple[Verdict, ...]:
        """Of each node: that of the worst of its ranks. All nodes of a bad switch are SLOWER."""
        bad = self._of_nodes(self.is_bad)
        for nodes in self.bad_switches().values():
            bad[nodes] = True
        # of two nodes, a slow one is in all pairs of both
        undecided = self._of_nodes(self.is_undecided) | (self.cluster.nodes == 2)
        return tuple(
            "SLOWER" if is_bad else "UNDECIDED" if is_undecided else "SAME"
            for is_bad, is_undecided in zip(bad, undecided, strict=True)
        )

    def bad_switches(self) -> dict[str, list[int]]:
        """Those of which most nodes are bad, and their nodes."""
        bad = self._of_nodes(self.is_bad)
        return {
            name: nodes
            for name, nodes in self.cluster.members.items()
            if bad[nodes].mean() >= SLOW_SWITCH_SHARE
        }

    def _of_nodes(self, flags: Flags) -> Flags:
        by_node = flags.any(axis=0).reshape(self.cluster.nodes, -1)
        return np.asarray(by_node.any(axis=1))


def findings_of(
    first: PairTimes, further: PairTimes, cluster: Cluster, slowdown: float
) -> Findings:
    """What the first rounds say about each rank, and the further ones about suspects."""
    slow = math.log1p(slowdown)
    sure = math.log1p(SURE_SHARE * slowdown)
    times = without_hop(first, cluster)
    screened = _excess(times, cluster, FALSE_ALARMS)
    is_measured = np.asarray(screened.times.any(axis=1, keepdims=True))
    is_suspect = is_measured & ~(screened.high < slow)
    # without any: as for a node that is slow in all aspects of all ranks
    level = FALSE_ALARMS / (np.count_nonzero(is_suspect) or len(ASPECTS) * cluster.ranks)
    confirmed = _excess(without_hop(further, cluster), cluster, level)
    is_fresh = is_suspect & (confirmed.times > 0)
    excess = screened.replaced(is_fresh, confirmed)
    is_bad = is_fresh & (excess.low > sure)
    is_outpaced = _is_outpaced(screened, sure)
    is_slower = is_outpaced & (screened.value > -sure)

    further_visits = 0
    powers = {}
    for metric, aspects in METRICS.items():
        if is_measured[aspects].any():
            suspects = is_suspect[aspects]
            noise = _noise(RankTimes(times.most.table[aspects]), suspects)
            power = Power(noise, cluster.partners, cluster.widening, sure, slow, level)
            value, low = (each[aspects][suspects] for each in (screened.value, screened.low))
            further_visits = max(further_visits, power.needed(value, low))
            powers[metric] = power
    return Findings(
        cluster=cluster,
        excess=excess,
        is_bad=is_bad,
        is_undecided=is_measured & ~is_bad & (is_slower | ~(excess.high < slow)),
        is_outpaced=np.asarray(is_outpaced[:, 0]),
        could_see={metric: power.could_see(further_visits) for metric, power in powers.items()},
        further_visits=further_visits,
    )


def _is_outpaced(screened: Excess, sure: float) -> Flags:
    """No partner makes a rank fast: where a quarter is faster than typical, the rest is slow. Above
    a value there may be times of slow partners, so the noise is that below it."""
    noise = screened.value - screened.low
    return among_ranks(screened.value + np.maximum(noise, sure), QUARTILE) < 0


def _noise(times: RankTimes, is_suspect: Flags) -> Numbers:
    """The differences of all times from the typical lower quartile; those of a suspect from its
    own."""
    usual = np.where(is_suspect, times.quartile, typical(times.quartile))
    noise = times.table - usual[:, :, None]
    return noise[~np.isnan(noise)]


def _excess(times: TimesWithoutHop, cluster: Cluster, level: float) -> Excess:
    """The more the times between switches share, the less is a rank's own."""
    lower = _excess_of(times.most, cluster, level)
    upper = _excess_of(times.least, cluster, level)
    return Excess(lower.value, lower.low, upper.high, lower.times)


def _excess_of(times: RankTimes, cluster: Cluster, level: float) -> Excess:
    """`level` is the probability that the lower bound is above the true value; for the upper one it
    is MISSED."""
    most = int(times.counts.max(initial=0))
    places = np.array([bound_ranks(count, level) for count in range(most + 1)])
    low = times.picked(places[times.counts, 0])
    high = times.picked(places[times.counts, 1])
    value = times.quartile
    # if one of its partners is slow, the quartile of a good rank's other times is further down
    clean = typical(times.at_share(QUARTILE * (1 - 1 / cluster.partners)))
    usual = typical(value)
    wide = value + cluster.widening * (high - value)
    return Excess(
        value - usual,
        np.where(np.isnan(low), -np.inf, low - usual),
        np.where(np.isnan(high), np.inf, wide - clean),
        times.counts,
    )
