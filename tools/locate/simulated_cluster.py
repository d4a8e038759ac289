"""A cluster whose slow part is known: the times of its pairs, and what each method finds in
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commbench.cluster.bad_nodes import (
    LATENCY,
    RECEIVES,
    SENDS,
    Cluster,
    Evidence,
    Flags,
    Indices,
    Numbers,
    PairTimes,
    SearchRule,
    evidence_of,
)
from commbench.cluster.node_rounds import Round, next_round
from commbench.core.layout import Pair

GROUP_SIZE = 16


@dataclass(frozen=True, eq=False)
class Planted:
    """`slowness` [aspects, nodes]: the log of how much longer each node's part takes. `bad` are the
    nodes that a search must name."""

    slowness: Numbers
    bad: frozenset[int]

    @classmethod
    def of(cls, kind: str, nodes: int, random: np.random.Generator, factor: float = 1.1) -> Planted:
        """Nothing, a slow node, one slow direction of a node's link, or the nodes of a switch; only
        bandwidth suffers."""
        slowness = np.zeros((3, nodes))
        if kind == "nothing":
            return cls(slowness, frozenset())
        node = int(random.integers(nodes))
        chosen = [node]
        if kind == "switch":
            first = node - node % GROUP_SIZE
            chosen = list(range(first, first + GROUP_SIZE))
        aspects = [int(random.integers(2))] if kind == "link" else [SENDS, RECEIVES]
        for aspect in aspects:
            slowness[aspect, chosen] = np.log(factor)
        return cls(slowness, frozenset(chosen))


@dataclass(eq=False)
class SimulatedCluster:
    """Measures pairs, and counts what that costs. The log of a measurement has a normal error of
    `noise`."""

    planted: Planted
    noise: float
    random: np.random.Generator
    rounds: int = 0
    visits: int = 0  # one after another
    pairs: int = 0  # both directions of a pair, once

    @property
    def nodes(self) -> int:
        return len(self.planted.slowness[0])

    def measured(self, pairs: Sequence[Pair], visits: int = 1) -> PairTimes:
        """A round: bandwidth in both directions, then latency."""
        self.rounds += 1
        self.visits += visits
        self.pairs += visits * len(pairs)
        first = np.array([pair[0] for pair in pairs], dtype=np.int64)
        second = np.array([pair[1] for pair in pairs], dtype=np.int64)
        source = np.concatenate((first, second, first))
        destination = np.concatenate((second, first, second))
        is_latency = np.arange(3 * len(pairs)) >= 2 * len(pairs)
        log_s = self.slowest(source, destination, is_latency)
        log_s = log_s + self.random.normal(0.0, self.noise / np.sqrt(visits), len(log_s))
        return PairTimes(
            np.full(len(log_s), self.rounds),
            is_latency,
            source,
            destination,
            log_s,
            np.full(len(log_s), visits),
        )

    def slowest(self, source: Indices, destination: Indices, is_latency: Flags) -> Numbers:
        """The log of the time of each pair over the typical one, without noise."""
        slowness = self.planted.slowness
        sends = slowness[np.where(is_latency, LATENCY, SENDS), source]
        receives = slowness[np.where(is_latency, LATENCY, RECEIVES), destination]
        return np.maximum(sends, receives)


@dataclass(frozen=True)
class Result:
    """The nodes that a method named, and what it measured for that."""

    named: frozenset[int]
    undecided: int
    rounds: int
    visits: int
    pairs: int

    @classmethod
    def of(cls, cluster: SimulatedCluster, named: Sequence[int], undecided: int = 0) -> Result:
        return cls(frozenset(named), undecided, cluster.rounds, cluster.visits, cluster.pairs)


def located(cluster: SimulatedCluster, groups: Cluster, rule: SearchRule, seed: int) -> Result:
    """What `commbench locate` does."""
    rounds: list[Round] = []
    parts: list[PairTimes] = []
    evidence: Evidence | None = None
    while True:
        chosen = next_round(rounds, evidence, cluster.nodes, seed)
        if not chosen.pairs:
            break
        rounds.append(chosen)
        parts.append(cluster.measured(chosen.pairs, chosen.visits))
        if len(rounds) >= 4:
            evidence = evidence_of(PairTimes.joined(parts), groups, rule)
    assert evidence is not None
    decisions = evidence.decisions()
    named = [node for node, decision in enumerate(decisions) if decision == "bad"]
    return Result.of(cluster, named, decisions.count("undecided"))
