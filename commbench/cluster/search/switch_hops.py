"""What the times between switches may share, which is no fault of a node."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commbench.cluster.search.pair_times import Cluster, Flags, Indices, Numbers, PairTimes
from commbench.cluster.search.rank_times import RankTimes, explained
from commbench.cluster.search.search_power import QUARTILE

LEAST_PAIRS = 8  # of nodes in a case, from which on they say what all of them share
SIMILAR_ERROR = 1.1  # of two explanations of the same times: noise decides between them


@dataclass(frozen=True, eq=False)
class TimesWithoutHop:
    """The times of each rank, without the least and without the most that times between switches
    may share."""

    without_least: RankTimes
    without_most: RankTimes


@dataclass(frozen=True, eq=False)
class SwitchedTimes:
    """Times of pairs of one metric: `nodes` and `switches` [2, pairs] of their ends."""

    log_s: Numbers
    nodes: Indices
    switches: Indices

    @classmethod
    def of(cls, times: PairTimes, cluster: Cluster) -> SwitchedTimes:
        nodes = np.stack((times.source, times.destination)) // cluster.ranks
        return cls(times.log_s, nodes, cluster.switch_numbers[nodes])

    @property
    def is_between(self) -> Flags:
        return np.asarray(self.switches[0] != self.switches[1])

    def hop_of_most_nodes(self) -> float:
        """If few nodes are slow."""
        return self._longer(np.ones(len(self.log_s), dtype=bool))

    def hop_of_a_node(self) -> float:
        """If slow nodes are in most pairs within switches: the largest that one has for itself."""
        nodes = range(int(self.nodes.max()) + 1)
        own = [self._longer((self.nodes == node).any(axis=0)) for node in nodes]
        return max((hop for hop in own if hop > 0), default=0.0)

    def hop_beside_slow_switches(self) -> float:
        """If whole switches are slow: what is left beside the slower one."""
        within = [
            self.log_s[~self.is_between & (self.switches[0] == number)]
            for number in range(int(self.switches.max()) + 1)
        ]
        level = np.array([_quartile(values) for values in within])
        excess = self.log_s - np.maximum(*level[self.switches])
        return _quartile(excess[self.is_between & ~np.isnan(excess)])

    def _longer(self, entries: Flags) -> float:
        within = _quartile(self.log_s[entries & ~self.is_between])
        return _quartile(self.log_s[entries & self.is_between]) - within


def without_hop(times: PairTimes, cluster: Cluster) -> TimesWithoutHop:
    """Also without what all pairs of a case share, where they are many."""
    is_between = SwitchedTimes.of(times, cluster).is_between
    least, most = np.zeros((2, len(times)))
    for is_latency in (False, True):
        entries = times.is_latency == is_latency
        between = entries & is_between
        if between.any() and (entries & ~is_between).any():
            hops = plausible_hops(times.chosen(entries), cluster)
            least[between] = min(hops)
            most[between] = max(hops)
    return TimesWithoutHop(*(_of_ranks(times, hop, cluster) for hop in (least, most)))


def plausible_hops(times: PairTimes, cluster: Cluster) -> list[float]:
    """By how much the logs of times between switches may be longer than those within, of one
    metric: what explains the times nearly as well as the best does. Several values do where nothing
    tells a slow switch from a slow path to it."""
    switched = SwitchedTimes.of(times, cluster)
    hops = (
        0.0,
        switched.hop_of_most_nodes(),
        switched.hop_of_a_node(),
        switched.hop_beside_slow_switches(),
    )
    errors = {}
    for hop in hops:
        if hop >= 0:
            log_s = times.log_s - hop * switched.is_between
            error = log_s - explained(times, log_s, cluster)
            errors[hop] = np.mean(np.abs(error - np.median(error)))
    return [hop for hop, error in errors.items() if error <= SIMILAR_ERROR * min(errors.values())]


def _of_ranks(times: PairTimes, hop: Numbers, cluster: Cluster) -> RankTimes:
    log_s = times.log_s - hop
    if cluster.nodes >= 2 * LEAST_PAIRS:
        excess = log_s - explained(times, log_s, cluster)
        for case in np.unique(times.case):
            entries = times.case == case
            log_s[entries] -= np.median(excess[entries])
    return RankTimes.of(times, log_s, cluster)


def _quartile(values: Numbers) -> float:
    """NaN of none."""
    return float(np.quantile(values, QUARTILE)) if len(values) else math.nan
