"""The text of a search begins with the bad nodes and how to leave them out."""

from __future__ import annotations

import numpy as np
from simulated_cluster import SimulatedCluster, searched

from commbench.cluster.search.node_rounds import Meetings
from commbench.cluster.search.pair_times import LATENCY, RECEIVES, SENDS, Cluster
from commbench.cluster.search.suspect_table import Places, Search
from commbench.core.layout import Layout
from commbench.core.terminal import Terminal

PLAIN = Terminal(None, False)


def search_with(
    slow: list[int],
    aspects: list[int],
    layout: str,
    switches: tuple[str, ...] = (),
    spread: float = 0.02,
) -> Search:
    shape = Layout.parse(layout)
    slowness = np.zeros((3, shape.size))
    slowness[np.ix_(aspects, slow)] = np.log(1.5)
    simulated = SimulatedCluster(shape, slowness, "normal", spread, np.random.default_rng(1))
    cluster = Cluster(shape.nodes, shape.ranks_per_node, switches) if switches else None
    findings, rounds = searched(simulated, cluster=cluster)
    hosts = tuple(f"n{rank // shape.ranks_per_node}" for rank in range(shape.size))
    meetings = Meetings(shape, 0)
    times = simulated.measured([meetings.pairs(number) for number in range(20)])
    return Search(Places(shape, hosts), 0.1, times, findings, rounds, 1.5)


def rows_of(search: Search) -> list[dict[str, object]]:
    suspects: list[dict[str, object]] = search.record()["suspects"]
    return suspects


def test_the_first_line_names_the_bad_node_and_how_to_leave_it_out() -> None:
    search = search_with([3], [SENDS], "16x1")
    lines = search.text(PLAIN).splitlines()
    assert lines[0] == "SLOWER: n3; Slurm: --exclude=n3; Kubernetes: kubectl cordon n3"
    (row,) = [line.split() for line in lines if line.startswith("n3 ")]
    assert row[1:3] == ["SLOWER", "sends"]
    assert 45 < float(row[3]) < 55
    assert any(line.startswith("16 nodes in layout 16x1: 15 SAME, 1 SLOWER, 0") for line in lines)
    assert not search.is_clean
    assert search.record()["bad"] == ["n3"]


def test_good_nodes_have_no_table_and_nothing_to_leave_out() -> None:
    search = search_with([], [], "16x1")
    text = search.text(PLAIN)
    assert text.startswith("SAME: all 16 nodes, unless 11 or more are slow alike\n")
    assert "16 SAME, 0 SLOWER, 0 UNDECIDED" in text
    assert "could see: bandwidth 10 %, latency 10 %" in text
    assert "decision" not in text and "--exclude" not in text
    assert search.is_clean


def test_two_nodes_are_not_decided_and_not_clean() -> None:
    search = search_with([], [], "2x2")
    assert search.text(PLAIN).startswith("UNDECIDED: all 2 nodes\n")
    assert not search.is_clean
    assert search.record()["nodes"] == ["UNDECIDED"] * 2


def test_noise_that_hides_the_slowdown_is_not_decided_and_not_clean() -> None:
    search = search_with([], [], "16x1", spread=0.5)
    assert search.text(PLAIN).startswith("UNDECIDED: ")
    assert not search.is_clean


def why_undecided(search: Search) -> str:
    return " ".join(search.text(PLAIN).rpartition("UNDECIDED: ")[2].split())


def test_an_undecided_search_says_why_and_what_to_do() -> None:
    assert why_undecided(search_with([], [], "2x2")) == (
        "a slow one of two nodes is in every pair, and so is the other"
    )
    assert why_undecided(search_with([*range(10)], [SENDS, RECEIVES, LATENCY], "16x1")) == (
        "a quarter of the nodes is faster than these: most nodes may be slow"
    )
    assert why_undecided(search_with([], [], "16x1", spread=0.5)) == (
        "noise hides it; run it on quiet nodes, or with search.slowdown=0.2, which lets 20 % pass"
    )
    switches = ("leaf0", *("leaf1",) * 15)
    slow = search_with([0], [SENDS, RECEIVES, LATENCY], "16x1", switches)
    assert "or nothing tells it from the path between two switches" in why_undecided(slow)


def test_no_line_of_a_good_answer_begins_as_a_bad_one() -> None:
    lines = search_with([], [], "16x1").text(PLAIN).splitlines()
    assert [line for line in lines[1:] if line.startswith(("SLOWER", "SAME", "UNDECIDED"))] == []


def test_a_bad_switch_is_one_line_and_all_its_nodes_are_left_out() -> None:
    switches = tuple(f"leaf{node // 4}" for node in range(32))
    search = search_with([4, 5, 6, 7], [SENDS, RECEIVES], "32x1", switches)
    assert [row["who"] for row in rows_of(search)] == ["leaf1 (4 nodes)"]
    assert "--exclude=n4,n5,n6,n7;" in search.text(PLAIN)


def test_a_bad_rank_of_a_single_node_is_named_with_its_number() -> None:
    search = search_with([3], [SENDS, RECEIVES], "1x16")
    text = search.text(PLAIN)
    assert text.startswith("SLOWER: rank 3 (n0)\n")
    assert "--exclude" not in text, "the only node is no node to leave out"
    assert search.record()["nodes"] == ["SLOWER"]


def test_a_node_is_named_with_its_slow_rank_where_the_others_are_not_slow() -> None:
    record = search_with([6], [SENDS], "8x2").record()
    assert record["nodes"] == ["SAME"] * 3 + ["SLOWER"] + ["SAME"] * 4
    (suspect,) = record["suspects"]
    assert (suspect["nodes"], suspect["who"]) == ([3], "n3 (rank 6)")
    assert (suspect["decision"], suspect["what_is_slow"]) == ("SLOWER", "sends")
    both = search_with([6, 7], [LATENCY], "8x2").record()
    assert [row["who"] for row in both["suspects"]] == ["n3"]


def test_the_record_has_how_much_longer_each_rank_takes() -> None:
    longer_by = search_with([6], [SENDS], "8x2").record()["longer_by"]
    assert [len(own) for own in longer_by.values()] == [16] * 3
    assert int(np.argmax(longer_by["sends"])) == 6
    assert 0.45 < longer_by["sends"][6] < 0.55
