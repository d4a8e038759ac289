"""Which nodes meet in the next round of a search for bad ones: all at random, then suspects and
known good partners.

With several ranks on each of enough nodes it is nodes that meet, with all their ranks at the same
time. The link within a node is not the one between nodes, and a fast one would acquit a slow
network card; and a card is as busy in each round as in any other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from commbench.core.layout import Pair, pairing

from .bad_nodes import LEAST_NODES, Decision, Evidence

RANDOM_ROUNDS = 4
MOST_ROUNDS = 8
SEPARATION = 6.0  # noises between a typical and a slow time, from the visits of a further round
CONTROL_PAIRS = 32  # of good nodes, in each further round: they show what is typical in it


@dataclass(frozen=True)
class Round:
    """Disjoint pairs of nodes that are measured at the same time, each `visits` times in both
    directions; no pairs at the end of a search."""

    pairs: tuple[Pair, ...]
    visits: int

    def plain(self) -> list[Any]:
        """As JSON, for the control plane."""
        return [self.pairs, self.visits]

    @classmethod
    def of_plain(cls, value: Sequence[Any]) -> Round:
        pairs, visits = value
        return cls(tuple((first, second) for first, second in pairs), visits)


def next_round(
    earlier: Sequence[Round],
    evidence: Evidence | None,
    places: int,
    seed: int,
    ranks_per_node: int = 1,
) -> Round:
    """The round after these; without pairs if each node is good or bad, or the rounds are spent."""
    number = len(earlier)
    if number < RANDOM_ROUNDS:
        return random_rounds(places, seed, ranks_per_node)[number]
    if evidence is None or number >= MOST_ROUNDS:
        return Round((), 1)
    together = _ranks_together(places, ranks_per_node)
    met = {
        frozenset((first // together, second // together))
        for former in earlier
        for first, second in former.pairs
    }
    pairs = _confirming_pairs(_Standing.of(evidence, together), met, Random(f"{seed}/{number}"))
    ranks = [pair for each in pairs for pair in _rank_pairs(each, together, number)]
    return Round(tuple(ranks), _visits_per_pair(evidence))


def random_rounds(places: int, seed: int, ranks_per_node: int = 1) -> list[Round]:
    """The first rounds, in which no two ranks meet twice; fewer where these are all partners."""
    together = _ranks_together(places, ranks_per_node)
    order = list(range(places // together))
    Random(f"{seed}/nodes").shuffle(order)
    turns = len(order) - 1
    rounds = []
    for number in range(min(RANDOM_ROUNDS, turns * together)):
        # when all nodes have met, their ranks meet others of the same nodes
        shift = number // turns
        nodes = pairing(order, number % turns)
        ranks = [pair for each in nodes for pair in _rank_pairs(each, together, shift)]
        rounds.append(Round(tuple(ranks), 1))
    return rounds


def _ranks_together(places: int, ranks_per_node: int) -> int:
    """How many consecutive ranks meet those of another node at the same time: all of a node, if
    there are enough nodes; else 1."""
    return ranks_per_node if places // ranks_per_node >= LEAST_NODES else 1


def _rank_pairs(nodes: Pair, together: int, shift: int) -> list[Pair]:
    """The pairs of the ranks of two nodes, of which each has one."""
    first, second = nodes
    return [
        (first * together + rank, second * together + (rank + shift) % together)
        for rank in range(together)
    ]


@dataclass(frozen=True)
class _Standing:
    """What is known of each node: the decision about all of its ranks together, and how suspicious
    the worst of them is."""

    decisions: tuple[Decision, ...]
    suspicion: tuple[float, ...]

    @classmethod
    def of(cls, evidence: Evidence, together: int) -> _Standing:
        decisions = evidence.decisions()
        suspicion = evidence.log_ratios.max(axis=0).tolist()
        ranks = [range(first, first + together) for first in range(0, len(decisions), together)]
        return cls(
            tuple(_joint_decision({decisions[rank] for rank in own}) for own in ranks),
            tuple(max(suspicion[rank] for rank in own) for own in ranks),
        )


def _joint_decision(decisions: Collection[Decision]) -> Decision:
    """Of a node: undecided while a rank is, and good only if all are."""
    worst: tuple[Decision, ...] = ("undecided", "bad", "good")
    return next(decision for decision in worst if decision in decisions)


def _visits_per_pair(evidence: Evidence) -> int:
    """As many that a further round decides about a suspect."""
    noises = (
        noise / math.log1p(slowdown)
        for noise, slowdown in zip(evidence.noise, evidence.least_slowdown, strict=True)
    )
    return math.ceil((SEPARATION * max(noises)) ** 2)


def _confirming_pairs(standing: _Standing, met: set[frozenset[int]], random: Random) -> list[Pair]:
    """Suspects with good partners, the most suspicious first; then suspects with each other, and
    good nodes with each other."""
    decisions = standing.decisions
    suspects = [node for node, decision in enumerate(decisions) if decision == "undecided"]
    suspects.sort(key=lambda node: -standing.suspicion[node])
    good = [node for node, decision in enumerate(decisions) if decision == "good"]
    random.shuffle(good)
    if not suspects:
        return []
    pairs = []
    rest = []
    for suspect in suspects:
        partner = _partner(suspect, good, met)
        if partner is None:
            rest.append(suspect)
        else:
            good.remove(partner)
            pairs.append(_either_way(suspect, partner, random))
    random.shuffle(rest)
    pairs += _among(rest, met, random)
    return pairs + _among(good, met, random)[:CONTROL_PAIRS]


def _among(nodes: list[int], met: set[frozenset[int]], random: Random) -> list[Pair]:
    """Pairs of these nodes, which have not met before as far as possible."""
    waiting = list(nodes)
    pairs = []
    while len(waiting) > 1:
        node = waiting.pop()
        partner = _partner(node, waiting, met)
        assert partner is not None
        waiting.remove(partner)
        pairs.append(_either_way(node, partner, random))
    return pairs


def _partner(node: int, others: Iterable[int], met: set[frozenset[int]]) -> int | None:
    """One that the node has not met, else any; None if there is none."""
    candidates = list(others)
    unmet = (other for other in candidates if frozenset((node, other)) not in met)
    return next(unmet, candidates[0] if candidates else None)


def _either_way(first: int, second: int, random: Random) -> Pair:
    return (first, second) if random.random() < 0.5 else (second, first)
