"""The text of a search names bad nodes, their evidence and how to leave them out."""

from __future__ import annotations

import numpy as np
from simulated_cluster import Planted, SimulatedCluster

from commbench.cluster.bad_nodes import RECEIVES, SENDS, Cluster, PairTimes, SearchRule, evidence_of
from commbench.cluster.suspect_table import Places, Search
from commbench.core.layout import Layout, pairing
from commbench.core.terminal import Terminal

PLAIN = Terminal(None, False)


def search_with(
    slow: list[int], aspects: list[int], layout: str, names: list[str | None] | None = None
) -> Search:
    shape = Layout.parse(layout)
    slowness = np.zeros((3, shape.size))
    slowness[np.ix_(aspects, slow)] = np.log(1.5)
    planted = Planted(slowness, frozenset(slow))
    simulated = SimulatedCluster(planted, 0.02, np.random.default_rng(1))
    order = range(shape.size)
    times = PairTimes.joined([simulated.measured(pairing(order, turn)) for turn in range(6)])
    cluster, groups = Cluster.of_names(names or [None] * shape.size)
    hosts = tuple(f"n{rank // shape.ranks_per_node}" for rank in order)
    places = Places(shape, hosts, cluster, groups)
    return Search(places, times, evidence_of(times, cluster, SearchRule()), 6, 1.5)


def test_a_bad_node_has_a_line_with_its_evidence_and_is_left_out_of_jobs() -> None:
    search = search_with([3], [SENDS], "16x1")
    lines = search.text(PLAIN).splitlines()
    assert lines[0].startswith("16 ranks in layout 16x1: 15 good, 1 bad, 0 undecided; 6 rounds")
    (row,) = [line.split() for line in lines if line.startswith("n3 ")]
    assert row[1:3] == ["bad", "sends"]
    assert 45 < int(row[3]) < 55 and row[5:7] == ["6", "6"], row
    assert "Slurm: --exclude=n3" in lines
    assert "Kubernetes: kubectl cordon n3" in lines
    assert not search.is_clean
    assert search.record()["bad"] == ["n3"]


def test_the_last_node_has_the_evidence_of_its_own_pairs_alone() -> None:
    lines = search_with([15], [SENDS], "16x1").text(PLAIN).splitlines()
    (row,) = [line.split() for line in lines if line.startswith("n15 ")]
    assert row[1:3] == ["bad", "sends"]
    assert 45 < int(row[3]) < 55 and row[5:7] == ["6", "6"], row


def test_good_nodes_have_no_table_and_nothing_to_leave_out() -> None:
    search = search_with([], [], "16x1")
    text = search.text(PLAIN)
    assert "16 good, 0 bad, 0 undecided" in text
    assert "decision" not in text and "--exclude" not in text
    assert search.is_clean


def test_a_bad_switch_is_one_line_and_all_its_nodes_are_left_out() -> None:
    names: list[str | None] = [f"leaf{node // 4}" for node in range(32)]
    text = search_with([4, 5, 6, 7], [SENDS, RECEIVES], "32x1", names).text(PLAIN)
    rows = [line.split() for line in text.splitlines() if " bad " in line and "10^" in line]
    assert [row[:2] for row in rows if row[0] != "bad"] == [["leaf1", "bad"]]
    assert "--exclude=n4,n5,n6,n7" in text


def test_a_bad_rank_within_a_node_is_named_with_its_number() -> None:
    text = search_with([3], [SENDS, RECEIVES], "1x16").text(PLAIN)
    assert "rank 3 (n0)  bad" in text
    assert "--exclude" not in text, "the only node is no node to leave out"


def test_the_record_has_the_decision_of_each_node_and_the_evidence_of_its_ranks() -> None:
    record = search_with([6], [SENDS], "8x2").record()
    assert record["nodes"] == ["good"] * 3 + ["bad"] + ["good"] * 4
    (suspect,) = record["suspects"]
    assert (suspect["node"], suspect["who"]) == (3, "rank 6 (n3)")
    assert (suspect["decision"], suspect["what_is_slow"]) == ("bad", "sends")


def test_what_is_typical_within_and_between_switches_is_told_apart() -> None:
    names: list[str | None] = [f"leaf{node // 8}" for node in range(32)]
    search = search_with([], [], "32x1", names)
    assert [link.name for link in search.link_classes()] == ["within a switch", "between switches"]
    assert sum(link.pairs for link in search.link_classes()) == 6 * 16
    assert "between switches: " in search.text(PLAIN)
    assert search_with([], [], "16x1").link_classes() == []
