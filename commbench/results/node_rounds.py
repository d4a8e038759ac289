"""Which nodes meet in the next round of a search for bad ones: all at random, then suspects and
known good partners."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from commbench.core.layout import Pair, pairing

from .bad_nodes import Evidence

RANDOM_ROUNDS = 4
MOST_ROUNDS = 8
SEPARATION = 5.0  # noises between a typical and a slow time, from the visits of a further round
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


def next_round(earlier: Sequence[Round], evidence: Evidence | None, nodes: int, seed: int) -> Round:
    """The round after these; without pairs if each node is good or bad, or the rounds are spent."""
    number = len(earlier)
    if number < RANDOM_ROUNDS:
        return random_rounds(nodes, seed)[number]
    if evidence is None or number >= MOST_ROUNDS:
        return Round((), 1)
    met = {frozenset(pair) for former in earlier for pair in former.pairs}
    pairs = _confirming_pairs(evidence, met, Random(f"{seed}/{number}"))
    return Round(tuple(pairs), _visits_per_pair(evidence))


def random_rounds(nodes: int, seed: int) -> list[Round]:
    """The first rounds, in which no two nodes meet twice; fewer where these are all partners."""
    order = list(range(nodes))
    Random(f"{seed}/nodes").shuffle(order)
    turns = range(min(RANDOM_ROUNDS, nodes - 1))
    return [Round(tuple(pairing(order, turn)), 1) for turn in turns]


def _visits_per_pair(evidence: Evidence) -> int:
    """As many that a further round decides about a suspect."""
    noises = (
        noise / math.log1p(slowdown)
        for noise, slowdown in zip(evidence.noise, evidence.least_slowdown, strict=True)
    )
    return math.ceil((SEPARATION * max(noises)) ** 2)


def _confirming_pairs(evidence: Evidence, met: set[frozenset[int]], random: Random) -> list[Pair]:
    """Suspects with good partners, the most suspicious first; then suspects with each other, and
    good nodes with each other."""
    decisions = evidence.decisions()
    suspicion = evidence.log_ratios.max(axis=0)
    suspects = [node for node, decision in enumerate(decisions) if decision == "undecided"]
    suspects.sort(key=lambda node: -suspicion[node])
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
