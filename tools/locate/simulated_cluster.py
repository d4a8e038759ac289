"""A cluster whose slow part is known: the times of its pairs, and what a search finds in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commbench.cluster.search.bad_nodes import Findings, findings_of
from commbench.cluster.search.node_rounds import FIRST_VISITS, Meetings
from commbench.cluster.search.pair_times import (
    LATENCY,
    RECEIVES,
    SENDS,
    Cluster,
    Numbers,
    PairTimes,
)
from commbench.core.layout import Layout, Pair

NOISES = ("normal", "lognormal", "exponential", "heavy-tailed")


def noise_of(kind: str, spread: float, size: int, random: np.random.Generator) -> Numbers:
    """Errors of the logs of times with the standard deviation `spread`; heavy-tailed is Student's
    distribution with 3 degrees of freedom."""
    if kind == "normal":
        return spread * random.standard_normal(size)
    if kind == "exponential":
        return spread * random.exponential(size=size)
    if kind == "heavy-tailed":
        return spread / math.sqrt(3) * random.standard_t(3, size)
    deviation = math.sqrt((math.e - 1) * math.e)
    return spread / deviation * np.exp(random.standard_normal(size))


@dataclass(eq=False)
class SimulatedCluster:
    """`slowness` [aspects, ranks] is the log of how much longer each rank's part takes. A pair is
    as slow as the slower of its two parts."""

    layout: Layout
    slowness: Numbers
    noise: str
    spread: float
    random: np.random.Generator

    @property
    def cluster(self) -> Cluster:
        nodes, ranks = self.layout.nodes, self.layout.ranks_per_node
        return Cluster(nodes, ranks) if nodes > 1 else Cluster(ranks)

    def measured(self, rounds: Sequence[Sequence[Pair]]) -> PairTimes:
        """In each round bandwidth in both directions, then latency."""
        first = np.array([[pair[0] for pair in each] for each in rounds], dtype=np.int64)
        second = np.array([[pair[1] for pair in each] for each in rounds], dtype=np.int64)
        source = np.stack((first, second, first), axis=1)
        destination = np.stack((second, first, second), axis=1)
        is_latency = np.zeros(source.shape, dtype=bool)
        is_latency[:, 2] = True
        case = np.arange(3 * len(rounds)).reshape(-1, 3, 1) + np.zeros_like(source)
        sends = self.slowness[np.where(is_latency, LATENCY, SENDS), source]
        receives = self.slowness[np.where(is_latency, LATENCY, RECEIVES), destination]
        errors = noise_of(self.noise, self.spread, source.size, self.random).reshape(source.shape)
        log_s = np.maximum(sends, receives) + errors
        return PairTimes(
            case.ravel(), is_latency.ravel(), source.ravel(), destination.ravel(), log_s.ravel()
        )


def searched(
    simulated: SimulatedCluster,
    slowdown: float = 0.1,
    seed: int = 0,
    cluster: Cluster | None = None,
) -> tuple[Findings, int]:
    """What `commbench locate` finds, and after how many rounds."""
    cluster = cluster or simulated.cluster
    meetings = Meetings(simulated.layout, seed)
    rounds = meetings.rounds(FIRST_VISITS)
    first = simulated.measured([meetings.pairs(number) for number in range(rounds)])
    nothing = first.chosen(np.zeros(len(first), dtype=bool))
    findings = findings_of(first, nothing, cluster, slowdown)
    if not findings.further_visits:
        return findings, rounds
    all_rounds = rounds + meetings.rounds(findings.further_visits)
    further = simulated.measured([meetings.pairs(number) for number in range(rounds, all_rounds)])
    return findings_of(first, further, cluster, slowdown), all_rounds
