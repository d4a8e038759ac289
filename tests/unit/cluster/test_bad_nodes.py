"""Slow nodes of simulated clusters are named, and no others."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from simulated_cluster import Planted, SimulatedCluster, located

from commbench.cluster.bad_nodes import (
    LATENCY,
    RECEIVES,
    SENDS,
    Cluster,
    Evidence,
    PairTimes,
    SearchRule,
    evidence_of,
)
from commbench.core.layout import pairing

RULE = SearchRule()


def cluster_with(slow: dict[tuple[int, int], float], nodes: int = 32) -> SimulatedCluster:
    """`slow`: the factor by which the time of an aspect of a node is longer."""
    slowness = np.zeros((3, nodes))
    for (aspect, node), factor in slow.items():
        slowness[aspect, node] = np.log(factor)
    planted = Planted(slowness, frozenset(node for _, node in slow))
    return SimulatedCluster(planted, 0.02, np.random.default_rng(5))


def evidence_after(
    cluster: SimulatedCluster, rounds: int = 6, group_of: tuple[int, ...] | None = None
) -> Evidence:
    nodes = range(cluster.nodes)
    times = [cluster.measured(pairing(nodes, turn)) for turn in range(rounds)]
    groups = Cluster(group_of or (-1,) * cluster.nodes)
    return evidence_of(PairTimes.joined(times), groups, RULE)


def bad_nodes(evidence: Evidence) -> list[int]:
    return [node for node, decision in enumerate(evidence.decisions()) if decision == "bad"]


@pytest.mark.parametrize("kind", ["nothing", "node", "link"])
def test_a_search_names_the_slow_node_and_no_other(kind: str) -> None:
    for seed in range(3):
        random = np.random.default_rng(seed)
        cluster = SimulatedCluster(Planted.of(kind, 64, random), 0.02, random)
        result = located(cluster, Cluster((-1,) * 64), RULE, seed)
        assert (result.named, result.undecided) == (cluster.planted.bad, 0)
        assert result.rounds <= 8


def test_the_slow_direction_of_a_link_is_told_apart() -> None:
    evidence = evidence_after(cluster_with({(RECEIVES, 3): 1.1}))
    assert bad_nodes(evidence) == [3]
    assert evidence.bad_aspects(3) == ("receives",)


def test_a_node_with_a_long_latency_only_is_bad() -> None:
    evidence = evidence_after(cluster_with({(LATENCY, 3): 1.1}))
    assert bad_nodes(evidence) == [3]
    assert evidence.bad_aspects(3) == ("latency",)


def test_two_bad_nodes_that_meet_are_both_named() -> None:
    first, second = pairing(range(32), 0)[0]
    slow = {(SENDS, first): 1.1, (SENDS, second): 2.0, (RECEIVES, second): 1.3}
    assert bad_nodes(evidence_after(cluster_with(slow))) == sorted((first, second))


def test_partners_of_a_bad_node_are_not_named() -> None:
    evidence = evidence_after(cluster_with({(SENDS, 3): 3.0, (RECEIVES, 3): 3.0}), rounds=4)
    assert bad_nodes(evidence) == [3]
    assert evidence.decisions().count("good") == 31


def test_a_slow_switch_is_named_instead_of_its_nodes() -> None:
    group_of = tuple(node // 8 for node in range(64))
    slow = {(aspect, node): 1.1 for aspect in (SENDS, RECEIVES) for node in range(8, 16)}
    evidence = evidence_after(cluster_with(slow, 64), group_of=group_of)
    assert bad_nodes(evidence) == [*range(8, 16)]
    assert [evidence.decision(64 + group) for group in range(8)].index("bad") == 1
    assert not any(evidence.bad_aspects(node) for node in range(64))


def test_a_slow_node_does_not_make_its_switch_bad() -> None:
    group_of = tuple(node // 8 for node in range(32))
    evidence = evidence_after(cluster_with({(SENDS, 3): 1.5, (RECEIVES, 3): 1.5}), 8, group_of)
    assert bad_nodes(evidence) == [3]
    assert [evidence.decision(32 + group) for group in range(4)] == ["good"] * 4


def test_a_single_disturbed_round_names_nobody() -> None:
    cluster = cluster_with({})
    times = [cluster.measured(pairing(range(32), turn)) for turn in range(6)]
    times[2].log_s[:10] += 1.0
    evidence = evidence_of(PairTimes.joined(times), Cluster((-1,) * 32), RULE)
    assert bad_nodes(evidence) == []


def test_a_round_that_is_slow_as_a_whole_names_nobody() -> None:
    cluster = cluster_with({})
    times = [cluster.measured(pairing(range(32), turn)) for turn in range(6)]
    for part in times[3:]:
        part.log_s[:] += 0.2
    evidence = evidence_of(PairTimes.joined(times), Cluster((-1,) * 32), RULE)
    assert evidence.decisions() == ("good",) * 32


def test_times_without_noise_are_decided() -> None:
    cluster = cluster_with({(SENDS, 3): 1.1}, nodes=8)
    cluster.noise = 0.0
    assert bad_nodes(evidence_after(cluster)) == [3]


def test_noise_that_hides_the_slowdown_raises_the_least_one_looked_for() -> None:
    cluster = cluster_with({(SENDS, 3): 3.0})
    cluster.noise = 0.3
    evidence = evidence_after(cluster)
    assert 0.4 < evidence.least_slowdown[0] < 0.8
    assert evidence.noise[0] == pytest.approx(0.3, rel=0.3)


def test_groups_are_those_of_several_nodes_but_not_of_all() -> None:
    names = ["a", "a", "a", "b", None, "c", "c", "c"]
    assert Cluster.of_names(names) == (Cluster((0, 0, 0, -1, -1, 1, 1, 1)), ("a", "c"))
    assert Cluster.of_names(["a"] * 8) == (Cluster((-1,) * 8), ())


def test_a_single_slow_time_names_nobody_even_beside_a_node_known_as_good() -> None:
    cluster = cluster_with({})
    times = PairTimes.joined([cluster.measured(pairing(range(32), turn)) for turn in range(8)])
    of_node = (times.source == 3) | (times.destination == 3)
    times.log_s[of_node & (times.round_number == 8)] += 1.0
    kept = ~of_node | (times.round_number == 8)
    few = PairTimes(*(getattr(times, column.name)[kept] for column in fields(times)))
    assert bad_nodes(evidence_of(few, Cluster((-1,) * 32), RULE)) == []


def test_pairs_within_a_group_are_compared_with_each_other() -> None:
    """They are twice as fast, which does not clear a slow node."""
    group_of = tuple(node // 8 for node in range(32))
    cluster = cluster_with({(SENDS, 3): 1.1})
    times = PairTimes.joined([cluster.measured(pairing(range(32), turn)) for turn in range(8)])
    within = times.source // 8 == times.destination // 8
    times.log_s[within] -= np.log(2)
    assert bad_nodes(evidence_of(times, Cluster(group_of), RULE)) == [3]


def test_a_quarter_of_all_nodes_may_be_slow() -> None:
    slow = {(aspect, node): 1.1 for aspect in (SENDS, RECEIVES) for node in range(0, 64, 4)}
    assert bad_nodes(evidence_after(cluster_with(slow, 64), rounds=8)) == [*range(0, 64, 4)]
