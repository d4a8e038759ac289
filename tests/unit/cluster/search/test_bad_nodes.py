"""Slow nodes of simulated clusters are named, and no others; what can't be decided is undecided."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from loops import for_each
from simulated_cluster import NOISES, SimulatedCluster, searched

from commbench.cluster.search.bad_nodes import Findings, findings_of
from commbench.cluster.search.node_rounds import Meetings
from commbench.cluster.search.pair_times import (
    ASPECTS,
    LATENCY,
    RECEIVES,
    SENDS,
    Cluster,
    PairTimes,
)
from commbench.core.layout import Layout, Pair

BANDWIDTH = (SENDS, RECEIVES)
ALL = (SENDS, RECEIVES, LATENCY)


def cluster_with(
    layout: str,
    slow: dict[int, float],
    aspects: tuple[int, ...] = ALL,
    noise: str = "normal",
    spread: float = 0.02,
    seed: int = 5,
) -> SimulatedCluster:
    """`slow`: the factor by which the times of a rank's aspects are longer."""
    shape = Layout.parse(layout)
    slowness = np.zeros((len(ASPECTS), shape.size))
    for rank, factor in slow.items():
        slowness[aspects, rank] = np.log(factor)
    return SimulatedCluster(shape, slowness, noise, spread, np.random.default_rng(seed))


def bad_nodes(findings: Findings) -> list[int]:
    return [node for node, own in enumerate(findings.verdicts()) if own == "SLOWER"]


def slow_aspects(findings: Findings, rank: int) -> list[str]:
    return [ASPECTS[aspect] for aspect in np.flatnonzero(findings.is_bad[:, rank])]


@for_each("noise", NOISES)
def test_a_slow_node_is_named_and_no_other_whatever_the_noise(noise: str) -> None:
    for seed in range(4):
        cluster = cluster_with("128x1", {7: 1.1}, BANDWIDTH, noise, 0.05, seed)
        findings, _ = searched(cluster, seed=seed)
        assert bad_nodes(findings) == [7]
        assert findings.verdicts().count("SAME") >= 126


@for_each("noise", NOISES)
def test_of_healthy_nodes_none_is_named_whatever_the_noise(noise: str) -> None:
    for seed in range(10):
        findings, _ = searched(cluster_with("64x1", {}, ALL, noise, 0.05, seed), seed=seed)
        assert bad_nodes(findings) == []


def test_healthy_nodes_without_much_noise_are_good_after_the_first_rounds() -> None:
    findings, rounds = searched(cluster_with("64x1", {}))
    assert set(findings.verdicts()) == {"SAME"}
    assert rounds == 20 and findings.further_visits == 0


@for_each("noise", NOISES)
def test_a_node_that_is_6_percent_slower_is_not_named_when_10_are_asked_for(noise: str) -> None:
    for seed in range(5):
        cluster = cluster_with("64x1", {7: 1.06}, ALL, noise, 0.02, seed)
        assert bad_nodes(searched(cluster, seed=seed)[0]) == []


SMALL = ["2x4", "3x1", "3x2", "3x4", "4x1", "4x2", "4x8", "5x4", "1x3", "1x8"]


@for_each("layout", SMALL)
def test_a_doubled_time_is_never_called_good_among_few_nodes(layout: str) -> None:
    shape = Layout.parse(layout)
    ranks = shape.ranks_per_node if shape.nodes > 1 else 1
    for seed, noise in enumerate(NOISES):
        slow = dict.fromkeys(range(ranks, 2 * ranks), 2.0)
        findings, _ = searched(cluster_with(layout, slow, ALL, noise, 0.05, seed), seed=seed)
        if shape.nodes == 2:
            assert set(findings.verdicts()) == {"UNDECIDED"}
        else:
            assert bad_nodes(findings) == [1]
            assert "SAME" in findings.verdicts()


def test_a_slow_rank_of_two_nodes_is_named_and_the_rest_stays_undecided() -> None:
    findings, _ = searched(cluster_with("2x4", {5: 2.0}))
    assert findings.verdicts() == ("UNDECIDED", "SLOWER")
    assert np.flatnonzero(findings.is_bad.any(axis=0)).tolist() == [5]


def test_two_slow_nodes_of_four_are_both_named() -> None:
    assert bad_nodes(searched(cluster_with("4x1", {0: 2.0, 2: 2.0}))[0]) == [0, 2]


def test_one_slow_rank_makes_its_node_bad() -> None:
    findings, _ = searched(cluster_with("8x4", {13: 1.2}))
    assert bad_nodes(findings) == [3]
    assert np.flatnonzero(findings.is_bad.any(axis=0)).tolist() == [13]


def test_the_slow_direction_of_a_link_is_told_apart() -> None:
    findings, _ = searched(cluster_with("32x1", {3: 1.15}, (RECEIVES,)))
    assert bad_nodes(findings) == [3]
    assert slow_aspects(findings, 3) == ["receives"]


def test_a_node_with_a_long_latency_only_is_bad() -> None:
    findings, _ = searched(cluster_with("32x1", {3: 1.15}, (LATENCY,)))
    assert slow_aspects(findings, 3) == ["latency"]


def test_two_bad_nodes_that_meet_are_both_named() -> None:
    first, second = Meetings(Layout.parse("32x1"), 0).pairs(0)[0]
    findings, _ = searched(cluster_with("32x1", {first: 1.15, second: 2.0}))
    assert bad_nodes(findings) == sorted((first, second))


def test_a_quarter_of_all_nodes_may_be_slow() -> None:
    slow = dict.fromkeys(range(0, 64, 4), 1.15)
    assert bad_nodes(searched(cluster_with("64x1", slow))[0]) == [*range(0, 64, 4)]


def test_a_slow_switch_is_named_and_all_its_nodes_are_bad() -> None:
    switches = tuple(f"leaf{node // 8}" for node in range(64))
    cluster = cluster_with("64x1", dict.fromkeys(range(8, 16), 1.15))
    findings, _ = searched(cluster, cluster=Cluster(64, 1, switches))
    assert list(findings.bad_switches()) == ["leaf1"]
    assert bad_nodes(findings) == [*range(8, 16)]


def test_a_slow_node_does_not_make_its_switch_bad() -> None:
    switches = tuple(f"leaf{node // 8}" for node in range(32))
    findings, _ = searched(cluster_with("32x1", {3: 1.5}), cluster=Cluster(32, 1, switches))
    assert (bad_nodes(findings), findings.bad_switches()) == ([3], {})


def racks_of(*sizes: int) -> tuple[str, ...]:
    return tuple(f"leaf{number}" for number, size in enumerate(sizes) for _ in range(size))


def searched_in_racks(
    racks: tuple[str, ...], slow: dict[int, float], hop: float, seed: int = 5
) -> Findings:
    """Where pairs of two racks take `hop` times as long as others."""
    nodes = len(racks)
    cluster = cluster_with(f"{nodes}x1", slow, seed=seed)
    rack = np.unique(racks, return_inverse=True)[1]
    measured_alike = cluster.measured

    def measured_with_hop(rounds: Sequence[Sequence[Pair]]) -> PairTimes:
        times = measured_alike(rounds)
        times.log_s[rack[times.source] != rack[times.destination]] += np.log(hop)
        return times

    cluster.measured = measured_with_hop  # type: ignore[method-assign]
    return searched(cluster, seed=seed, cluster=Cluster(nodes, 1, racks))[0]


@for_each("hop", [1.0, 2.0])
@for_each("sizes", [(4, 4), (3, 5), (3, 13), (8, 8), (12, 20), (32, 32), (3, 3, 3), (8, 8, 8)])
def test_a_slow_rack_is_named_and_no_node_of_the_others(sizes: tuple[int, ...], hop: float) -> None:
    for seed, factor in enumerate((1.15, 1.4, 2.0)):
        slow = dict.fromkeys(range(sizes[0]), factor)
        findings = searched_in_racks(racks_of(*sizes), slow, hop, seed)
        assert bad_nodes(findings) == [*range(sizes[0])]
        assert list(findings.bad_switches()) == ["leaf0"]


@for_each("hop", [1.0, 2.0])
@for_each("sizes", [(2, 2), (3, 3), (4, 4), (3, 13), (16, 16), (8, 8, 8)])
def test_a_slow_node_of_a_rack_is_named_and_no_other(sizes: tuple[int, ...], hop: float) -> None:
    racks = racks_of(*sizes)
    assert bad_nodes(searched_in_racks(racks, {0: 1.3}, hop)) == [0]
    assert set(searched_in_racks(racks, {}, hop).verdicts()) == {"SAME"}


def test_what_may_be_a_slow_switch_or_a_slow_path_to_it_is_not_decided() -> None:
    racks = racks_of(1, 15)
    for seed, factor in enumerate((1.2, 1.5, 2.0, 3.0)):
        verdicts = searched_in_racks(racks, {}, hop=factor, seed=seed).verdicts()
        assert verdicts == ("UNDECIDED", *("SAME",) * 15)
        slow = searched_in_racks(racks, {0: factor}, hop=1.0, seed=seed)
        assert slow.verdicts() == verdicts


@for_each(("nodes", "slow"), [(4, 2), (8, 4), (16, 8), (64, 32)])
def test_half_of_the_nodes_may_be_slow(nodes: int, slow: int) -> None:
    chosen = np.random.default_rng(1).permutation(nodes)[:slow].tolist()
    findings, _ = searched(cluster_with(f"{nodes}x1", dict.fromkeys(chosen, 1.2)))
    assert bad_nodes(findings) == sorted(chosen)


@for_each("nodes", [3, 4, 5, 7, 8, 12, 16, 32, 64])
def test_most_nodes_are_not_called_good_where_they_are_slow(nodes: int) -> None:
    """Up to the number that an answer gives: from there on a search can't see them."""
    for slow in range(nodes // 2 + 1, Cluster(nodes).unseen):
        for seed, noise in enumerate(NOISES):
            cluster = cluster_with(f"{nodes}x1", dict.fromkeys(range(slow), 1.2), ALL, noise)
            findings, _ = searched(cluster, seed=seed)
            assert "SAME" not in findings.verdicts()[:slow]
            assert "SLOWER" not in findings.verdicts()[slow:]


def test_switches_are_those_of_several_nodes_but_not_of_all() -> None:
    names = ("a", "a", "a", "b", None, "c", "c", "c")
    assert Cluster(8, 1, names).members == {"a": [0, 1, 2], "c": [5, 6, 7]}
    assert Cluster(8, 1, ("a",) * 8).members == {}


def measured(cluster: SimulatedCluster, first: int, count: int) -> PairTimes:
    meetings = Meetings(cluster.layout, 0)
    return cluster.measured([meetings.pairs(number) for number in range(first, first + count)])


def test_a_single_disturbed_round_names_nobody() -> None:
    cluster = cluster_with("32x1", {})
    first, further = measured(cluster, 0, 20), measured(cluster, 20, 24)
    for times in (first, further):
        times.log_s[times.case < 3][:10] += 1.0
        times.log_s[:10] += 1.0
    assert bad_nodes(findings_of(first, further, cluster.cluster, 0.1)) == []


def test_only_further_rounds_make_a_node_bad() -> None:
    slow, healthy = cluster_with("32x1", {3: 2.0}), cluster_with("32x1", {})
    first = measured(slow, 0, 20)
    nothing = first.chosen(np.zeros(len(first), dtype=bool))
    assert findings_of(first, nothing, slow.cluster, 0.1).verdicts()[3] == "UNDECIDED"
    later = findings_of(first, measured(healthy, 20, 24), slow.cluster, 0.1)
    assert later.verdicts()[3] == "SAME"


def test_rounds_that_are_slow_as_a_whole_name_nobody() -> None:
    cluster = cluster_with("32x1", {})
    first = measured(cluster, 0, 20)
    first.log_s[first.case >= 30] += 0.2
    nothing = first.chosen(np.zeros(len(first), dtype=bool))
    assert findings_of(first, nothing, cluster.cluster, 0.1).verdicts() == ("SAME",) * 32


def test_times_without_noise_are_decided() -> None:
    findings, _ = searched(cluster_with("8x1", {3: 1.1}, BANDWIDTH, spread=0.0))
    assert (bad_nodes(findings), findings.verdicts().count("SAME")) == ([3], 7)


def test_pairs_within_a_switch_are_compared_with_each_other() -> None:
    """They are twice as fast, which does not clear a slow node."""
    switches = tuple(f"leaf{node // 8}" for node in range(32))
    cluster = cluster_with("32x1", {3: 1.15})
    parts = measured(cluster, 0, 20), measured(cluster, 20, 48)
    for times in parts:
        times.log_s[times.source // 8 == times.destination // 8] -= np.log(2)
    assert bad_nodes(findings_of(*parts, Cluster(32, 1, switches), 0.1)) == [3]


def test_an_aspect_that_was_not_measured_decides_nothing() -> None:
    cluster = cluster_with("32x1", {})
    first = measured(cluster, 0, 20)
    bandwidth = first.chosen(~first.is_latency)
    nothing = first.chosen(np.zeros(len(first), dtype=bool))
    findings = findings_of(bandwidth, nothing, cluster.cluster, 0.1)
    assert set(findings.verdicts()) == {"SAME"}
    assert list(findings.could_see) == ["bandwidth"]


def test_noise_that_hides_the_slowdown_leaves_nodes_undecided_and_is_said() -> None:
    findings, _ = searched(cluster_with("16x1", {}, spread=0.3))
    assert bad_nodes(findings) == []
    assert findings.verdicts().count("UNDECIDED") > 8
    assert 0.2 < findings.could_see["bandwidth"] < 0.6


@for_each(("layout", "noise"), itertools.product(["3x2", "16x1"], NOISES))
def test_a_node_as_slow_as_a_run_could_see_is_named(layout: str, noise: str) -> None:
    ranks = Layout.parse(layout).ranks_per_node
    named = 0
    for seed in range(8):
        healthy, _ = searched(cluster_with(layout, {}, ALL, noise, 0.05, seed), seed=seed)
        slow = dict.fromkeys(range(ranks), 1 + healthy.could_see["bandwidth"])
        cluster = cluster_with(layout, slow, BANDWIDTH, noise, 0.05, seed)
        named += bad_nodes(searched(cluster, seed=seed)[0]) == [0]
    assert named >= 7
