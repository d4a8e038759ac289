"""Which nodes are slow, from the times of pairs of nodes that meet in rounds.

A node's value is the lower quartile of the logs of its times, over that of the median node: what
it sends, what it receives, and its latency. A slow partner makes a few of them slow and none fast.
The bounds of a quartile are order statistics, which hold for any distribution of the noise (David
and Nagaraja, Order Statistics, 7.1).

The first rounds clear the nodes whose upper bound is below `slowdown`. The others are suspects, and
only rounds that follow decide about them: a suspect is bad if its lower bound there is above
`SURE_SHARE` of `slowdown`. Their levels are divided among the suspects (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from commbench.cluster.search.search_power import QUARTILE, Numbers, Power, bound_ranks
from commbench.stats.thresholds import FALSE_ALARMS

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Aspect = Literal["sends", "receives", "latency"]
Decision = Literal["bad", "good", "undecided"]
ASPECTS: tuple[Aspect, ...] = ("sends", "receives", "latency")
SENDS, RECEIVES, LATENCY = range(3)
METRICS = {"bandwidth": [SENDS, RECEIVES], "latency": [LATENCY]}
SURE_SHARE = 0.6  # of `slowdown`: what a bad node exceeds for sure
LEAST_PAIRS = 8  # of nodes in a case, from which on their quartile says what all of them share
LEAST_OF_CLASS = 16  # times within switches, or between them, likewise
LEAST_GROUP = 3  # nodes of a switch: two slow ones do not tell a slow switch
BAD_SHARE = 0.75  # of the nodes of a switch: from which on the switch is bad


@dataclass(frozen=True)
class Cluster:
    """`nodes` meet each other with `ranks` each; of a single node its ranks count as nodes.
    `switches` has the name of each node's switch or None, and nothing if none is known."""

    nodes: int
    ranks: int = 1
    switches: tuple[str | None, ...] = ()

    @property
    def partners(self) -> int:
        """How many others a rank meets of which each may be slow by itself."""
        return self.nodes - 1 if self.nodes > 2 else self.ranks

    @property
    def widening(self) -> float:
        """Of an interval, because typical is the median of so few nodes only; pi / 2 is the
        variance of a median over that of a mean."""
        return math.sqrt(1 + math.pi / 2 / self.nodes)

    @property
    def members(self) -> dict[str, list[int]]:
        """The nodes of each switch that has several, but not all."""
        nodes: dict[str, list[int]] = {}
        for node, name in enumerate(self.switches):
            if name is not None:
                nodes.setdefault(name, []).append(node)
        return {name: own for name, own in nodes.items() if LEAST_GROUP <= len(own) < self.nodes}


@dataclass(frozen=True, eq=False)
class PairTimes:
    """The measured pairs. Those with the same number of `case` ran at the same time, in one
    direction; a latency is a round trip and has none. Sources and destinations are ranks."""

    case: Indices
    is_latency: Flags
    source: Indices
    destination: Indices
    log_s: Numbers

    def __len__(self) -> int:
        return len(self.log_s)

    def chosen(self, entries: Flags) -> PairTimes:
        return PairTimes(*(getattr(self, column.name)[entries] for column in fields(self)))


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
    """`is_bad` and `is_undecided` [aspects, ranks] with the evidence for them. `could_see` has the
    smallest slowdown of each metric that is named in 95 % of such runs; `further_visits` are those
    that each node needs after the first rounds."""

    cluster: Cluster
    excess: Excess
    is_bad: Flags
    is_undecided: Flags
    could_see: dict[str, float]
    further_visits: int

    def decisions(self) -> tuple[Decision, ...]:
        """Of each node: that of the worst of its ranks. All nodes of a bad switch are bad."""
        bad = self._of_nodes(self.is_bad)
        for nodes in self.bad_switches().values():
            bad[nodes] = True
        # of two nodes, a slow one is in all pairs of both
        undecided = self._of_nodes(self.is_undecided) | (self.cluster.nodes == 2)
        return tuple(
            "bad" if is_bad else "undecided" if is_undecided else "good"
            for is_bad, is_undecided in zip(bad, undecided, strict=True)
        )

    def bad_switches(self) -> dict[str, list[int]]:
        """Those of which most nodes are bad, and their nodes."""
        bad = self._of_nodes(self.is_bad)
        return {
            name: nodes
            for name, nodes in self.cluster.members.items()
            if bad[nodes].mean() >= BAD_SHARE
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
    table = _table(first, cluster)
    screened = _excess(table, cluster, FALSE_ALARMS)
    is_measured = np.asarray(screened.times.any(axis=1, keepdims=True))
    is_suspect = is_measured & ~(screened.high < slow)
    # without any: as for a node that is slow in all aspects of all ranks
    level = FALSE_ALARMS / (np.count_nonzero(is_suspect) or len(ASPECTS) * cluster.ranks)
    confirmed = _excess(_table(further, cluster), cluster, level)
    is_fresh = is_suspect & (confirmed.times > 0)
    excess = screened.replaced(is_fresh, confirmed)
    is_bad = is_fresh & (excess.low > sure)

    further_visits = 0
    powers = {}
    for metric, aspects in METRICS.items():
        if is_measured[aspects].any():
            suspects = is_suspect[aspects]
            noise = _noise(table[aspects], suspects)
            power = Power(noise, cluster.partners, cluster.widening, sure, slow, level)
            visits = power.needed(
                screened.value[aspects][suspects], screened.low[aspects][suspects]
            )
            further_visits = max(further_visits, visits)
            powers[metric] = power
    return Findings(
        cluster,
        excess,
        is_bad,
        is_measured & ~is_bad & ~(excess.high < slow),
        {metric: power.could_see(further_visits) for metric, power in powers.items()},
        further_visits,
    )


# ---------------------------------------------------------------- times


def _table(times: PairTimes, cluster: Cluster) -> Numbers:
    """The logs of each rank's times [aspects, ranks, cases], NaN where it has none; without what
    all pairs of a case share, where they are many."""
    numbers, case = np.unique(times.case, return_inverse=True)
    log_s = _without_classes(times, cluster)
    table = np.full((len(ASPECTS), cluster.nodes * cluster.ranks, len(numbers)), np.nan)
    one_way = ~times.is_latency
    for aspect, entries, ranks in (
        (SENDS, one_way, times.source),
        (RECEIVES, one_way, times.destination),
        (LATENCY, times.is_latency, times.source),
        (LATENCY, times.is_latency, times.destination),
    ):
        table[aspect, ranks[entries], case[entries]] = log_s[entries]
    if cluster.nodes >= 2 * LEAST_PAIRS:
        by_case = np.swapaxes(table, 1, 2)
        table -= _quantiles(np.sort(by_case, axis=2), _counts(by_case), QUARTILE)[:, None]
    return table


def _counts(table: Numbers) -> Indices:
    return np.asarray(np.count_nonzero(~np.isnan(table), axis=2))


def _without_classes(times: PairTimes, cluster: Cluster) -> Numbers:
    """The logs of the times over the lower quartile of all within switches, or between them, where
    these are enough: it does not depend on the slow ones."""
    log_s = times.log_s.copy()
    known = cluster.switches or (None,) * cluster.nodes
    # a node whose switch is not known has one of its own
    switches = np.array([name or node for node, name in enumerate(known)], dtype=object)
    first, second = times.source // cluster.ranks, times.destination // cluster.ranks
    is_within: Flags = switches[first] == switches[second]
    for is_latency in (False, True):
        of_metric = times.is_latency == is_latency
        _subtract_quartile(log_s, of_metric, least=1)
        _subtract_quartile(log_s, of_metric & is_within, LEAST_OF_CLASS)
        _subtract_quartile(log_s, of_metric & ~is_within, LEAST_OF_CLASS)
    return log_s


def _subtract_quartile(values: Numbers, entries: Flags, least: int) -> None:
    if np.count_nonzero(entries) >= least:
        values[entries] -= np.quantile(values[entries], QUARTILE)


def _noise(table: Numbers, is_suspect: Flags) -> Numbers:
    """The differences of all times from the typical lower quartile; those of a suspect from its
    own."""
    value = _quantiles(np.sort(table, axis=2), _counts(table), QUARTILE)
    usual = np.where(is_suspect, value, _typical(value))
    noise = table - usual[:, :, None]
    return noise[~np.isnan(noise)]


# ---------------------------------------------------------------- order statistics


def _excess(table: Numbers, cluster: Cluster, level: float) -> Excess:
    """`level` is the probability that the lower bound is above the true value; for the upper one it
    is MISS."""
    ordered = np.sort(table, axis=2)  # NaN is last
    times = _counts(table)
    value = _quantiles(ordered, times, QUARTILE)
    most = int(times.max(initial=0))
    ranks = np.array([bound_ranks(count, level) for count in range(most + 1)])
    low = _picked(ordered, ranks[times, 0])
    high = _picked(ordered, ranks[times, 1])
    # if one of its partners is slow, the quartile of a good rank's other times is further down
    clean = _quantiles(ordered, times, QUARTILE * (1 - 1 / cluster.partners))
    typical = _typical(value)
    return Excess(
        value - typical,
        np.where(np.isnan(low), -np.inf, low - typical),
        np.where(
            np.isnan(high), np.inf, value + cluster.widening * (high - value) - _typical(clean)
        ),
        times,
    )


def _typical(values: Numbers) -> Numbers:
    """That of the median rank of each aspect; of two, that of the faster one."""
    ordered = np.sort(values, axis=1)
    known = np.count_nonzero(~np.isnan(values), axis=1)
    return np.take_along_axis(ordered, np.maximum(known - 1, 0)[:, None] // 2, axis=1)


def _quantiles(ordered: Numbers, times: Indices, share: float) -> Numbers:
    return _picked(ordered, np.maximum((share * times).astype(np.int64) - 1, 0))


def _picked(ordered: Numbers, ranks: Indices) -> Numbers:
    """The values of these ranks, 0 being the lowest; NaN for a negative one."""
    if not ordered.shape[2]:
        return np.full(ranks.shape, np.nan)
    values = np.take_along_axis(ordered, np.maximum(ranks, 0)[:, :, None], axis=2)[:, :, 0]
    return np.where(ranks < 0, np.nan, values)
