"""Which nodes are slow, from the times of disjoint pairs of nodes.

A pair is as slow as its slowest part: the source's sending, the destination's receiving, either
one's latency, or the same of a group of nodes (a switch). Each part is slow or not, and slow means
by the factor 1 + slowdown. The evidence of a part is the log of a likelihood ratio, slow against
not slow, over all its pairs. A pair says little about a part whose partner may be the slow one, so
the evidence of both is computed together (belief propagation with noisy-or factors: Pearl 1988;
group testing: Sejdinovic and Johnson 2010).

As in Wald's sequential test, a part is bad above log(parts / false_alarm): by the inequality of
Ville a run names a node wrongly with at most that probability, whenever it stops. It is good below
log(miss). A single slow round counts for at most a third of the first, since it may have been
disturbed; nothing makes a slow part fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.slow_pairs import MAD_TO_SIGMA

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Aspect = Literal["sends", "receives", "latency"]
Decision = Literal["bad", "good", "undecided"]
ASPECTS: tuple[Aspect, ...] = ("sends", "receives", "latency")
SENDS = 0
RECEIVES = 1
LATENCY = 2
LEAST_NODES = 5  # with four, one slow node is in half of all pairs: no time is typical
LEAST_GROUP = 3  # two slow nodes of a group of two do not tell a slow switch
PRIOR = 0.02  # that a part is slow, as far as it explains the time of its partner
PASSES = 4  # of messages between parts and pairs, for each estimate of the typical time
SHORTH_REACH = 1.5  # widths of the shortest half, to either side: two standard deviations
ESTIMATES = 3  # of the typical time, each without the pairs that the last one explains as slow
DAMPING = 0.3  # of a message, so that loops of pairs do not oscillate
LEAST_TYPICAL = 16  # pairs with a typical time and a noise of their own
LEAST_NOISE = 1e-3  # a clock of ns and times of us; without noise (simulated) nothing divides by 0
SURE_NOISES = 1.5  # times the noise: the least slowdown that a few rounds can tell


@dataclass(frozen=True)
class SearchRule:
    """`slowdown` is the least one that matters (0.1: takes 10 % longer), `false_alarm` the
    probability that a run names a good node, `miss` that it clears a given bad one."""

    slowdown: float = 0.10
    false_alarm: float = 0.01
    miss: float = 0.002


@dataclass(frozen=True)
class Cluster:
    """`group_of` has the number of the group of each node (its switch), -1 for none."""

    group_of: tuple[int, ...]

    @classmethod
    def of_names(cls, names: Sequence[str | None]) -> tuple[Cluster, tuple[str, ...]]:
        """The cluster for the name of each node's switch, and the names of its groups. A group
        with few nodes, or with all of them, is none."""
        sizes = {name: names.count(name) for name in dict.fromkeys(names) if name is not None}
        groups = [name for name, size in sizes.items() if LEAST_GROUP <= size < len(names)]
        numbers = {name: number for number, name in enumerate(groups)}
        return cls(tuple(-1 if name is None else numbers.get(name, -1) for name in names)), tuple(
            groups
        )

    @property
    def nodes(self) -> int:
        return len(self.group_of)

    @property
    def groups(self) -> int:
        return max(self.group_of, default=-1) + 1

    @property
    def parts(self) -> int:
        return len(ASPECTS) * (self.nodes + self.groups)


@dataclass(frozen=True, eq=False)
class PairTimes:
    """The measured pairs, an entry for each direction of a pair in a round.

    `log_s` is the mean log of the times of its visits. A latency is a round trip, so it has no
    direction.
    """

    round_number: Indices
    is_latency: Flags
    source: Indices
    destination: Indices
    log_s: Numbers
    visits: Indices

    def __len__(self) -> int:
        return len(self.log_s)

    @classmethod
    def joined(cls, parts: Sequence[PairTimes]) -> PairTimes:
        columns = (
            np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)
        )
        return cls(*columns)


@dataclass(frozen=True, eq=False)
class Evidence:
    """`log_ratios` [aspects, nodes + groups]: the log likelihood ratio of each part, slow against
    not slow. `noise` and `least_slowdown` are those of bandwidth and latency: the standard
    deviation of the log of a time, and the slowdown that was looked for. `excess` is the log of
    each entry's time over the typical one.
    """

    cluster: Cluster
    rule: SearchRule
    log_ratios: Numbers
    noise: tuple[float, float]
    least_slowdown: tuple[float, float]
    excess: Numbers

    def decision(self, place: int) -> Decision:
        """Of a node, or of a group behind the nodes: bad if one of its parts is."""
        own = self.log_ratios[:, place]
        if own.max() >= bad_limit(self.cluster, self.rule):
            return "bad"
        return "good" if own.max() <= math.log(self.rule.miss) else "undecided"

    def decisions(self) -> tuple[Decision, ...]:
        """Of each node; those of a bad group are bad."""
        nodes = self.cluster.nodes
        bad_groups = {
            group for group in range(self.cluster.groups) if self.decision(nodes + group) == "bad"
        }
        return tuple(
            "bad" if group in bad_groups else self.decision(node)
            for node, group in enumerate(self.cluster.group_of)
        )

    def bad_aspects(self, place: int) -> tuple[Aspect, ...]:
        limit = bad_limit(self.cluster, self.rule)
        own = self.log_ratios[:, place]
        return tuple(aspect for aspect, ratio in zip(ASPECTS, own, strict=True) if ratio >= limit)


def bad_limit(cluster: Cluster, rule: SearchRule) -> float:
    """The log likelihood ratio above which a part is bad."""
    return math.log(cluster.parts / rule.false_alarm)


def evidence_of(times: PairTimes, cluster: Cluster, rule: SearchRule) -> Evidence:
    """What the pairs say about each part."""
    parts = _parts_of(times, cluster)
    bad = bad_limit(cluster, rule)
    limit = bad / 3
    is_typical = _in_shortest_half(times)
    messages: Numbers = np.zeros(parts.shape)
    for _ in range(ESTIMATES):
        excess = _excess(times, cluster, is_typical)
        noise = _noise(times, excess, is_typical)
        noises = (_single_noise(times, noise, False), _single_noise(times, noise, True))
        least = tuple(max(math.log1p(rule.slowdown), SURE_NOISES * sigma) for sigma in noises)
        slow = np.where(times.is_latency, least[1], least[0])
        ratios = np.clip(slow * (excess - slow / 2) / noise**2, -bad, limit)
        totals, messages, typical_log = _propagated(parts, ratios, messages, cluster.parts)
        # slow if its parts say so; with few pairs a part, only the pair itself can
        is_typical = (typical_log > math.log(0.5)) & (ratios < limit)
    return Evidence(
        cluster,
        rule,
        totals.reshape(len(ASPECTS), -1),
        noises,
        (math.expm1(least[0]), math.expm1(least[1])),
        excess,
    )


def _parts_of(times: PairTimes, cluster: Cluster) -> Indices:
    """The parts that each entry's time depends on, [entries, 4]: nodes, then groups; the number of
    parts stands for none."""
    places = cluster.nodes + cluster.groups
    group_of = np.asarray(cluster.group_of, dtype=np.int64)
    sends = np.where(times.is_latency, LATENCY, SENDS) * places
    receives = np.where(times.is_latency, LATENCY, RECEIVES) * places
    first_group = group_of[times.source]
    second_group = group_of[times.destination]
    none = cluster.parts
    same = times.is_latency & (first_group == second_group)  # one part, not two
    return np.stack(
        (
            sends + times.source,
            receives + times.destination,
            np.where(first_group < 0, none, sends + cluster.nodes + first_group),
            np.where((second_group < 0) | same, none, receives + cluster.nodes + second_group),
        ),
        axis=1,
    )


def _in_shortest_half(times: PairTimes) -> Flags:
    """The entries in the narrowest range with half of the times of bandwidth, or of latency: its
    middle is typical even if nearly half of the pairs are slow (the shorth: Andrews et al. 1972).

    The range is widened to what its width suggests for all typical times of a normal distribution.
    """
    chosen = np.zeros(len(times), dtype=bool)
    for is_latency in (False, True):
        kind = times.is_latency == is_latency
        ordered = np.sort(times.log_s[kind])
        half = len(ordered) // 2
        widths = ordered[half:] - ordered[: len(ordered) - half]
        if not len(widths):
            continue
        first = int(widths.argmin())
        middle = (ordered[first] + ordered[first + half]) / 2
        reach = SHORTH_REACH * widths[first]
        chosen |= kind & (np.abs(times.log_s - middle) <= reach)
    return chosen


def _excess(times: PairTimes, cluster: Cluster, is_typical: Flags) -> Numbers:
    """The log of each time over the median of the typical ones of its kind: bandwidth or latency,
    within a group or not. What all pairs of a round share is no pair's."""
    group_of = np.asarray(cluster.group_of, dtype=np.int64)
    first_group = group_of[times.source]
    within = (first_group == group_of[times.destination]) & (first_group >= 0)
    excess = times.log_s.copy()
    for is_latency in (False, True):
        kind = times.is_latency == is_latency
        _subtract_median(excess, kind, is_typical, least=1)
        _subtract_median(excess, kind & within, is_typical, LEAST_TYPICAL)
        for number in np.unique(times.round_number):
            _subtract_median(
                excess, kind & (times.round_number == number), is_typical, LEAST_TYPICAL
            )
    return excess


def _subtract_median(values: Numbers, chosen: Flags, is_typical: Flags, least: int) -> None:
    """Subtract from the chosen values the median of their typical ones, if these are enough."""
    typical = values[chosen & is_typical]
    if len(typical) >= least:
        values[chosen] -= np.median(typical)


def _noise(times: PairTimes, excess: Numbers, is_typical: Flags) -> Numbers:
    """The standard deviation of each entry's log time, robust, from the typical entries.

    With several visits it is that of one visit over their root, or what such entries show, if that
    is more: pairs may differ from each other for good. With few entries it is enlarged by its own
    error.
    """
    noise = np.full(len(times), LEAST_NOISE)
    for is_latency in (False, True):
        kind = times.is_latency == is_latency
        chosen = kind & is_typical
        if not chosen.any():
            continue
        roots = np.sqrt(times.visits)
        single = _spread(excess[chosen] * roots[chosen])
        noise[kind] = np.maximum(single / roots[kind], LEAST_NOISE)
        for visits in np.unique(times.visits[kind]):
            alike = kind & (times.visits == visits)
            if np.count_nonzero(alike & is_typical) >= LEAST_TYPICAL:
                own = _spread(excess[alike & is_typical])
                noise[alike] = np.maximum(noise[alike], own)
    return noise


def _spread(values: Numbers) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(values))) * (1 + 1 / math.sqrt(len(values)))


def _single_noise(times: PairTimes, noise: Numbers, is_latency: bool) -> float:
    """The noise of one visit."""
    chosen = noise[(times.is_latency == is_latency) & (times.visits == times.visits.min())]
    return float(chosen.max(initial=LEAST_NOISE) * math.sqrt(times.visits.min()))


def _propagated(
    parts: Indices, ratios: Numbers, messages: Numbers, none: int
) -> tuple[Numbers, Numbers, Numbers]:
    """The evidence of each part, the messages of the entries to their parts, and the log of each
    entry's probability that all its parts are good.

    A message is the likelihood ratio of one part, given how likely the entry's others are good.
    """
    prior = math.log(PRIOR / (1 - PRIOR))
    weight = np.exp(-ratios)[:, None]
    for _ in range(PASSES):
        totals = np.bincount(parts.ravel(), messages.ravel(), minlength=none + 1)
        log_good = -np.logaddexp(0.0, prior + totals[parts] - messages)
        log_good[parts == none] = 0.0
        others_good = np.exp(log_good.sum(axis=1, keepdims=True) - log_good)
        fresh = -np.log1p(others_good * (weight - 1.0))
        messages = DAMPING * messages + (1 - DAMPING) * fresh
    totals = np.bincount(parts.ravel(), messages.ravel(), minlength=none + 1)
    log_good = -np.logaddexp(0.0, prior + totals[parts])
    log_good[parts == none] = 0.0
    typical_log: Numbers = log_good.sum(axis=1)
    return totals[:none].astype(np.float64), messages, typical_log
