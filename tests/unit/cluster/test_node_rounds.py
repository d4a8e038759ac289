"""Rounds of a search: every node in one pair at most, suspects with good partners."""

from __future__ import annotations

import numpy as np
from loops import for_each

from commbench.cluster.bad_nodes import Cluster, Evidence, SearchRule
from commbench.cluster.node_rounds import MOST_ROUNDS, Round, next_round
from commbench.core.layout import Pair


def evidence_with(undecided: set[int], bad: set[int], nodes: int, noise: float = 0.02) -> Evidence:
    """The other nodes are good."""
    ratios = np.full((3, nodes), -10.0)
    ratios[0, sorted(undecided)] = 0.0
    ratios[0, sorted(bad)] = 50.0
    cluster = Cluster((-1,) * nodes)
    return Evidence(cluster, SearchRule(), ratios, (noise, noise), (0.1, 0.1), np.zeros(0))


def first_rounds(nodes: int) -> list[Round]:
    rounds: list[Round] = []
    for _ in range(4):
        rounds.append(next_round(rounds, None, nodes, seed=1))
    return rounds


def met(rounds: list[Round]) -> list[frozenset[int]]:
    return [frozenset(pair) for each in rounds for pair in each.pairs]


def members(pairs: tuple[Pair, ...]) -> list[int]:
    return sorted(node for pair in pairs for node in pair)


@for_each("nodes", [5, 6, 8, 33, 512])
def test_the_first_rounds_pair_all_nodes_and_no_two_of_them_twice(nodes: int) -> None:
    rounds = first_rounds(nodes)
    for each in rounds:
        assert len(set(members(each.pairs))) == len(members(each.pairs)) == nodes // 2 * 2
    assert len(set(met(rounds))) == 4 * (nodes // 2)


def test_the_order_depends_on_the_seed_alone() -> None:
    assert next_round([], None, 64, seed=1) == next_round([], None, 64, seed=1)
    assert next_round([], None, 64, seed=1) != next_round([], None, 64, seed=2)


def test_suspects_meet_good_nodes_that_they_have_not_met() -> None:
    rounds = first_rounds(16)
    following = next_round(rounds, evidence_with({2, 7}, {9}, 16), 16, seed=1)
    pairs = [frozenset(pair) for pair in following.pairs]
    of_suspects = [pair for pair in pairs if pair & {2, 7}]
    assert len(of_suspects) == 2
    assert not set(of_suspects) & set(met(rounds))
    assert 9 not in members(following.pairs)
    assert len(members(following.pairs)) == len(set(members(following.pairs)))
    assert len(pairs) > 2, "good nodes show what is typical"


def test_suspects_meet_each_other_where_no_node_is_known_to_be_good() -> None:
    following = next_round(first_rounds(8), evidence_with(set(range(8)), set(), 8), 8, seed=1)
    assert members(following.pairs) == [*range(8)]


def test_more_noise_takes_more_visits_of_a_pair() -> None:
    rounds = first_rounds(16)
    calm = next_round(rounds, evidence_with({2}, set(), 16, noise=0.02), 16, seed=1)
    noisy = next_round(rounds, evidence_with({2}, set(), 16, noise=0.05), 16, seed=1)
    assert (calm.visits, noisy.visits) == (2, 10)


def test_no_round_follows_when_all_is_decided_or_the_rounds_are_spent() -> None:
    rounds = first_rounds(16)
    assert next_round(rounds, evidence_with(set(), {3}, 16), 16, seed=1).pairs == ()
    spent = rounds * (MOST_ROUNDS // 4)
    assert next_round(spent, evidence_with({3}, set(), 16), 16, seed=1).pairs == ()


@for_each("layout", [(8, 2), (5, 8), (16, 4)])
def test_ranks_of_one_node_never_meet_where_there_are_enough_nodes(layout: tuple[int, int]) -> None:
    nodes, each = layout
    size = nodes * each
    rounds = [next_round([], None, size, 1, each)]
    while len(rounds) < 4:
        rounds.append(next_round(rounds, None, size, 1, each))
    assert len(set(met(rounds))) == 4 * (nodes // 2) * each, "no two meet twice"
    rounds.append(next_round(rounds, evidence_with({0, 1, 2}, {3}, size), size, 1, each))
    rounds.append(next_round(rounds, evidence_with(set(range(size)), set(), size), size, 1, each))
    for pairs in rounds:
        assert all(first // each != second // each for first, second in pairs.pairs)
        assert len(members(pairs.pairs)) == len(set(members(pairs.pairs)))


def test_all_ranks_of_few_nodes_meet() -> None:
    """A slow one of four nodes is in half of all pairs between nodes: nothing is typical there."""
    rounds = first_rounds(8)
    assert rounds[0] == next_round([], None, 8, 1, ranks_per_node=2)
