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
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from commbench.cluster.search.search_power import QUARTILE, Numbers, Power, bound_ranks
from commbench.stats.thresholds import FALSE_ALARMS, SLOW_SWITCH_SHARE, SURE_SHARE
from commbench.stats.verdict import Verdict

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Aspect = Literal["sends", "receives", "latency"]
ASPECTS: tuple[Aspect, ...] = ("sends", "receives", "latency")
SENDS, RECEIVES, LATENCY = range(3)
METRICS = {"bandwidth": [SENDS, RECEIVES], "latency": [LATENCY]}
TYPICAL_SHARE = 0.4  # of the ranks are faster than the typical one
LEAST_PAIRS = 8  # of nodes in a case, from which on they say what all of them share
SIMILAR_ERROR = 1.1  # of two explanations of the same times: noise decides between them
LEAST_GROUP = 3  # nodes of a switch: two slow ones do not tell a slow switch


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
    def unseen(self) -> int:
        """From so many slow nodes on none is seen: too few partners of the others are fast."""
        return math.ceil(2 / 3 * self.nodes)

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
    tables = _tables(first, cluster)
    screened = _excess(tables, cluster, FALSE_ALARMS)
    is_measured = np.asarray(screened.times.any(axis=1, keepdims=True))
    is_suspect = is_measured & ~(screened.high < slow)
    # without any: as for a node that is slow in all aspects of all ranks
    level = FALSE_ALARMS / (np.count_nonzero(is_suspect) or len(ASPECTS) * cluster.ranks)
    confirmed = _excess(_tables(further, cluster), cluster, level)
    is_fresh = is_suspect & (confirmed.times > 0)
    excess = screened.replaced(is_fresh, confirmed)
    is_bad = is_fresh & (excess.low > sure)

    # no partner makes a rank fast: where a quarter is faster than typical, the rest is slow; above
    # the value there may be times of slow partners, so the noise is that below it
    noise = screened.value - screened.low
    is_outpaced = _at_share(screened.value + np.maximum(noise, sure), QUARTILE) < 0
    is_slower = is_outpaced & (screened.value > -sure)

    further_visits = 0
    powers = {}
    for metric, aspects in METRICS.items():
        if is_measured[aspects].any():
            suspects = is_suspect[aspects]
            power = Power(
                _noise(tables[1][aspects], suspects),
                cluster.partners,
                cluster.widening,
                sure,
                slow,
                level,
            )
            visits = power.needed(
                screened.value[aspects][suspects], screened.low[aspects][suspects]
            )
            further_visits = max(further_visits, visits)
            powers[metric] = power
    return Findings(
        cluster,
        excess,
        is_bad,
        is_measured & ~is_bad & (is_slower | ~(excess.high < slow)),
        np.asarray(is_outpaced[:, 0]),
        {metric: power.could_see(further_visits) for metric, power in powers.items()},
        further_visits,
    )


# ---------------------------------------------------------------- times


def _tables(times: PairTimes, cluster: Cluster) -> tuple[Numbers, Numbers]:
    """The logs of each rank's times [aspects, ranks, cases], NaN where it has none, with the least
    and with the most that times between switches may share; without what all pairs of a case share,
    where they are many."""
    switch = _switch_numbers(cluster)
    is_between = switch[times.source // cluster.ranks] != switch[times.destination // cluster.ranks]
    bounds = np.zeros((2, len(times)))
    for is_latency in (False, True):
        entries = times.is_latency == is_latency
        if (entries & is_between).any() and (entries & ~is_between).any():
            hops = _hops(times.chosen(entries), cluster)
            bounds[:, entries & is_between] = np.array([[min(hops)], [max(hops)]])
    least, most = (_by_rank(times, _without_cases(times, hop, cluster), cluster) for hop in bounds)
    return least, most


def _without_cases(times: PairTimes, hop: Numbers, cluster: Cluster) -> Numbers:
    log_s = times.log_s - hop
    if cluster.nodes >= 2 * LEAST_PAIRS:
        excess = log_s - _explained(times, log_s, cluster)
        for case in np.unique(times.case):
            entries = times.case == case
            log_s[entries] -= np.median(excess[entries])
    return log_s


def _by_rank(times: PairTimes, log_s: Numbers, cluster: Cluster) -> Numbers:
    numbers, case = np.unique(times.case, return_inverse=True)
    table = np.full((len(ASPECTS), cluster.nodes * cluster.ranks, len(numbers)), np.nan)
    one_way = ~times.is_latency
    for aspect, entries, ranks in (
        (SENDS, one_way, times.source),
        (RECEIVES, one_way, times.destination),
        (LATENCY, times.is_latency, times.source),
        (LATENCY, times.is_latency, times.destination),
    ):
        table[aspect, ranks[entries], case[entries]] = log_s[entries]
    return table


def _counts(table: Numbers) -> Indices:
    return np.asarray(np.count_nonzero(~np.isnan(table), axis=2))


def _explained(times: PairTimes, log_s: Numbers, cluster: Cluster) -> Numbers:
    """The log of each time by the values of its ranks: a pair is as slow as the slower one."""
    table = _by_rank(times, log_s, cluster)
    value = _quantiles(np.sort(table, axis=2), _counts(table), QUARTILE)
    sends = np.where(times.is_latency, LATENCY, SENDS)
    receives = np.where(times.is_latency, LATENCY, RECEIVES)
    return np.maximum(value[sends, times.source], value[receives, times.destination])


# ---------------------------------------------------------------- switches


def _switch_numbers(cluster: Cluster) -> Indices:
    """Of each node; one whose switch is not known has one of its own."""
    known = cluster.switches or (None,) * cluster.nodes
    names = [name or f"of node {node}" for node, name in enumerate(known)]
    return np.asarray(np.unique(names, return_inverse=True)[1])


def _hops(times: PairTimes, cluster: Cluster) -> list[float]:
    """By how much the logs of times between switches may be longer than those within, of one
    metric: what explains the times nearly as well as the best does. Several values do where nothing
    tells a slow switch from a slow path to it."""
    ends = np.stack((times.source, times.destination)) // cluster.ranks
    switch = _switch_numbers(cluster)[ends]
    is_between = switch[0] != switch[1]

    def longer(entries: Flags) -> float:
        within = _quartile(times.log_s[entries & ~is_between])
        return _quartile(times.log_s[entries & is_between]) - within

    # if few nodes are slow; if these are in most pairs within switches: what one has for itself
    hops = [0.0, longer(np.ones(len(times), dtype=bool))]
    own = [longer((ends == node).any(axis=0)) for node in range(cluster.nodes)]
    hops.append(max((hop for hop in own if hop > 0), default=0.0))
    # if whole switches are slow: what is left beside the slower one
    level = np.array(
        [
            _quartile(times.log_s[~is_between & (switch[0] == number)])
            for number in range(int(switch.max()) + 1)
        ]
    )
    excess = times.log_s - np.maximum(*level[switch])
    hops.append(_quartile(excess[is_between & ~np.isnan(excess)]))
    errors = {}
    for hop in hops:
        if hop >= 0:
            log_s = times.log_s - hop * is_between
            error = log_s - _explained(times, log_s, cluster)
            errors[hop] = np.mean(np.abs(error - np.median(error)))
    return [hop for hop, error in errors.items() if error <= SIMILAR_ERROR * min(errors.values())]


def _quartile(values: Numbers) -> float:
    """NaN of none."""
    return float(np.quantile(values, QUARTILE)) if len(values) else math.nan


def _noise(table: Numbers, is_suspect: Flags) -> Numbers:
    """The differences of all times from the typical lower quartile; those of a suspect from its
    own."""
    value = _quantiles(np.sort(table, axis=2), _counts(table), QUARTILE)
    usual = np.where(is_suspect, value, _typical(value))
    noise = table - usual[:, :, None]
    return noise[~np.isnan(noise)]


# ---------------------------------------------------------------- order statistics


def _excess(tables: tuple[Numbers, Numbers], cluster: Cluster, level: float) -> Excess:
    """See `_tables`: the more the times between switches share, the less is a rank's own."""
    most, least = (_excess_of(table, cluster, level) for table in tables)
    return Excess(least.value, least.low, most.high, least.times)


def _excess_of(table: Numbers, cluster: Cluster, level: float) -> Excess:
    """`level` is the probability that the lower bound is above the true value; for the upper one it
    is MISSED."""
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
    """That of about the median rank of each aspect; of two, that of the faster one. Of many it is a
    faster one, because half of them may be slow."""
    return _at_share(values, TYPICAL_SHARE)


def _at_share(values: Numbers, share: float) -> Numbers:
    """That of the rank of each aspect that so many of the known others are below."""
    ordered = np.sort(values, axis=1)
    known = np.count_nonzero(~np.isnan(values), axis=1)
    place = np.rint(share * np.maximum(known - 1, 0)).astype(np.int64)
    return np.take_along_axis(ordered, place[:, None], axis=1)


def _quantiles(ordered: Numbers, times: Indices, share: float) -> Numbers:
    return _picked(ordered, np.maximum((share * times).astype(np.int64) - 1, 0))


def _picked(ordered: Numbers, ranks: Indices) -> Numbers:
    """The values of these ranks, 0 being the lowest; NaN for a negative one."""
    if not ordered.shape[2]:
        return np.full(ranks.shape, np.nan)
    values = np.take_along_axis(ordered, np.maximum(ranks, 0)[:, :, None], axis=2)[:, :, 0]
    return np.where(ranks < 0, np.nan, values)
