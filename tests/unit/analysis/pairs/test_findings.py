"""Slow pairs: noise is no finding, planted truth is one, and each pair is judged against its own
class."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pair_worlds import Pair, changed, row, world

from commbench.analysis.pairs.findings import Finding, findings, told_once
from commbench.analysis.pairs.matrix import matrices
from commbench.results.row import Row


def reported(rows: list[Row]) -> list[tuple[str, str | None, int | None]]:
    return [(finding.kind, finding.pair, finding.rank) for finding in findings(rows)]


def test_noise_is_no_finding() -> None:
    quiet = [not findings(world(8, noise=0.03, seed=seed)) for seed in range(100)]
    assert sum(quiet) >= 95


def test_a_slow_pair_is_found_in_noise() -> None:
    trials = [reported(world(8, {(0, 2): 1.5}, noise=0.03, seed=seed)) for seed in range(100)]
    assert (
        sum(trial == [("slow", "0-2", None), ("asymmetric", "0-2", None)] for trial in trials) >= 95
    )


def test_the_text_says_how_slow_and_against_what() -> None:
    slow, asymmetric = findings(world(4, {(0, 2): 2.05}))
    assert (
        slow.text
        == "p2p_latency 1 KiB: 0-2 takes 4.10 us, 2.05 x the 2.00 us of the other pairs on one node"
    )
    assert (
        asymmetric.text == "p2p_latency 1 KiB: 0-2 takes 2.05 x the time of 2-0 (4.10 us, 2.00 us)"
    )
    assert (slow.run_id, slow.benchmark, slow.message_bytes) == ("r", "p2p_latency", 1024)
    assert slow.ratio == asymmetric.ratio == pytest.approx(2.05)


def test_no_direction_of_a_slow_pair_is_told_again() -> None:
    found = findings(world(4, {(0, 2): 5.0, (2, 0): 20.0}))
    assert [finding.pair for finding in found] == ["0-2", "2-0"], (
        "both directions, one of them twice"
    )
    assert [finding.kind for finding in told_once(found)] == ["slow"]


@pytest.mark.parametrize(("size", "ranks_per_node"), [(4, 4), (4, 2), (6, 3), (8, 8)])
def test_a_slow_rank_is_named_first_and_its_pairs_point_to_it(
    size: int, ranks_per_node: int
) -> None:
    rank, *others = findings(world(size, slow_rank=3, factor=2.0, ranks_per_node=ranks_per_node))
    pairs = 2 * (size - 1)
    assert (rank.kind, rank.rank, rank.pair, rank.ratio) == ("rank", 3, None, pytest.approx(2.0))
    assert rank.text.endswith(
        f"rank 3 is in all {pairs} slow pairs: look at the rank, not at the link"
    )
    assert len(others) == size - 1, "one for both directions"
    assert all(
        finding.kind == "slow" and finding.rank == 3 and "3" in str(finding.pair)
        for finding in others
    )


@pytest.mark.parametrize(("size", "ranks_per_node"), [(8, 8), (16, 16), (16, 4)])
def test_a_rank_that_takes_15_percent_longer_is_named_though_none_of_its_pairs_is_slow(
    size: int, ranks_per_node: int
) -> None:
    def named(factor: float, seed: int) -> list[Finding]:
        rows = world(size, None, 3, factor, 1.5, ranks_per_node, 0.015, seed)
        return told_once(findings(rows))

    seeds = range(20)
    found = [named(1.15, seed) for seed in seeds]
    assert sum([(each.kind, each.rank) for each in own] == [("rank", 3)] for own in found) >= 19
    assert re.search(r"rank 3 takes 1\d % longer .*; commbench locate tells more", found[0][0].text)
    assert sum(bool(named(1.0, seed)) for seed in seeds) <= 1


def test_all_ranks_of_a_slow_node_are_named_with_its_host() -> None:
    pairs = [(first, second) for first in range(12) for second in range(12)]
    apart = [pair for pair in pairs if pair[0] // 2 != pair[1] // 2]
    slow = {pair: 1.15 for pair in apart if 1 in (pair[0] // 2, pair[1] // 2)}
    found = told_once(findings(world(12, slow, ranks_per_node=2, noise=0.01)))
    assert sorted(each.rank or 0 for each in found) == [2, 3]
    nodes = [{"host.hostname": f"n{node}"} for node in range(6)]
    ranks = [[2 * node, 2 * node + 1] for node in range(6)]
    run = {"provenance": {"nodes": nodes}, "world": {"ranks": ranks}}
    assert {each.text_with_host(run)[-5:] for each in found} == {" (n1)"}


def test_ranks_on_a_smaller_socket_are_not_slow() -> None:
    """Four of six ranks share a socket; most pairs are between both."""
    apart = {(a, b): 1.3 for a in range(6) for b in range(6) if (a < 4) != (b < 4)}
    assert findings(world(6, apart, noise=0.01, ranks_per_node=6)) == []


def test_two_slow_ranks_are_both_named() -> None:
    rows = world(
        8,
        {(first, 5): 2.0 for first in range(8)} | {(5, second): 2.0 for second in range(8)},
        3,
        2.0,
    )
    ranks = [finding for finding in findings(rows) if finding.kind == "rank"]
    assert {finding.rank for finding in ranks} == {3, 5}
    assert len(ranks) == 2
    assert all("in 14 of 26 slow pairs" in finding.text for finding in ranks)


def test_a_rank_with_half_of_its_links_slow_is_no_slow_rank() -> None:
    """Of 8 directions between 5 ranks 4 are slow, then 5: more than half."""
    slow = {(0, 1): 3.0, (1, 0): 3.0, (0, 2): 3.0, (2, 0): 3.0}
    assert [finding.kind for finding in findings(world(5, slow))] == ["slow", "slow"]
    more = {**slow, (0, 3): 3.0}
    (rank, *_) = findings(world(5, more))
    assert (rank.kind, rank.rank, rank.ratio) == ("rank", 0, pytest.approx(3.0))
    assert "rank 0 is in all 5 slow pairs" in rank.text


def test_a_bad_link_is_no_bad_rank() -> None:
    assert reported(world(8, {(1, 6): 3.0, (6, 1): 3.0})) == [("slow", "1-6", None)]


def sizes(planted: dict[int, dict[Pair, float]], **more: Any) -> list[Row]:
    """A matrix of 8 ranks per size, with what is planted at each."""
    return [
        entry
        for size, slow in planted.items()
        for entry in world(8, slow, noise=0.01, message_bytes=size, **more)
    ]


def test_a_neighbouring_size_must_agree() -> None:
    slow = {(0, 2): 3.0}
    assert findings(sizes({8: {}, 64: slow, 512: {}, 4096: slow})) == []
    both = {(0, 2): 4.0, (2, 0): 4.0}
    slowest = findings(sizes({8: {}, 64: {}, 512: {(0, 2): 2.0, (2, 0): 2.0}, 4096: both}))
    assert [(finding.kind, finding.pair, finding.message_bytes) for finding in slowest] == [
        ("slow", "0-2", 4096)
    ]
    assert all(finding.text.endswith("; at 2 of 4 sizes") for finding in slowest)


@pytest.mark.parametrize(
    ("warnings", "width", "factor", "count"),
    [(["oversubscribed"], 0.02, 9.0, 0), ([], 0.1, 1.8, 0), ([], 0.1, 2.5, 1)],
)
def test_unusable_rows_accuse_nobody_and_uncertain_ones_need_twice_the_time(
    warnings: list[str], width: float, factor: float, count: int
) -> None:
    def doubted(entry: Row) -> Row:
        assert entry.median_s is not None
        ends = {"ci_low_s": 1 - width, "ci_high_s": 1 + width}
        times = {name: end * entry.median_s for name, end in ends.items()}
        return changed(entry, {"warnings": warnings} | times)

    rows = sizes({8: {(0, 2): factor, (2, 0): factor}, 64: {(0, 2): factor, (2, 0): factor}})
    assert len(findings(rows)) == 1, "one link"
    doubtful = [doubted(entry) if entry.pair in ("0-2", "2-0") else entry for entry in rows]
    assert len(findings(doubtful)) == count
    # where all are, none is conspicuous
    assert findings(list(map(doubted, rows))) == []
    assert findings([entry for entry in doubtful if entry.message_bytes == 8]) == []


def test_one_usable_size_of_several_accuses_nobody() -> None:
    rows = sizes({8: {(0, 2): 3.0, (2, 0): 3.0}, 64: {(0, 2): 3.0, (2, 0): 3.0}})
    for other in ({"warnings": ["oversubscribed"]}, {"status": "failed", "median_s": None}):
        assert (
            findings([changed(entry, other if entry.message_bytes == 64 else {}) for entry in rows])
            == []
        )
    assert len(findings([entry for entry in rows if entry.message_bytes == 8])) == 1


@pytest.mark.parametrize("between", [10.0, 0.1])
def test_nodes_apart_are_a_class_of_their_own(between: float) -> None:
    assert findings(world(6, between=between, ranks_per_node=3, noise=0.03)) == []
    planted = world(6, {(0, 4): 1.5}, between=between, ranks_per_node=3, noise=0.03)
    assert reported(planted) == [("slow", "0-4", None), ("asymmetric", "0-4", None)]
    assert "of the other pairs between nodes" in findings(planted)[0].text


def test_a_rank_that_is_slow_with_itself_is_found() -> None:
    assert reported(world(4, {(2, 2): 1.5})) == [("slow", "2-2", None)]


def test_two_pairs_do_not_tell_which_is_wrong() -> None:
    assert findings([row("0-1", 1e-6), row("1-2", 3e-6)]) == []
    assert reported([row("0-1", 1e-6), row("1-2", 1e-6), row("2-3", 3e-6)]) == [
        ("slow", "2-3", None)
    ]


def test_a_pair_without_an_interval_accuses_nobody() -> None:
    unknown = {"ci_low_s": None, "ci_high_s": None}
    rows = world(4, {(0, 1): 5.0})
    assert findings([changed(row, unknown if row.pair == "0-1" else {}) for row in rows]) == []


def test_intervals_that_meet_are_symmetric() -> None:
    rows = [row("0-1", 2e-6), row("1-0", 1e-6, ci_high_s=1.97e-6)]
    assert findings(rows) == []
    assert reported([rows[0], row("1-0", 1e-6)]) == [("asymmetric", "0-1", None)]


@pytest.mark.parametrize(
    "other",
    [
        {"benchmark": "p2p_bandwidth"},
        {"message_bytes": 8},
        {"engine": "native"},
        {"dtype": "int8"},
        {"window": 2},
        {"streams": 4},
        {"schedule": "rounds"},
        {"layout": "1x3"},
        {"run_id": "s"},
        {"env": {"A": "b"}},
    ],
)
def test_only_cases_that_differ_in_nothing_else_are_compared(other: dict[str, Any]) -> None:
    fast = world(2, **other)
    assert findings([*fast, row("0-1", 9e-6), row("1-0", 9e-6)]) == []
    assert len(matrices([*fast, *world(2)])) == 2


def test_what_tells_two_matrices_apart_is_in_the_text() -> None:
    rows = [
        *world(4, {(0, 2): 2.0}, engine="python", window=4),
        *world(4, {(0, 2): 3.0}, engine="native", window=4),
    ]
    texts = [finding.text for finding in findings(rows) if finding.kind == "slow"]
    assert [text.partition(": ")[0] for text in texts] == [
        "p2p_latency 1 KiB, native",
        "p2p_latency 1 KiB, python",
    ]


def test_rows_that_are_no_entry_of_a_matrix_are_left_out() -> None:
    foreign = [row(None, 1e-6), row("0-2 1-3", 1e-6)]
    assert matrices(foreign) == []
    skipped = [
        changed(entry, {"status": "skipped", "median_s": None, "ci_low_s": None})
        for entry in world(3)
    ]
    assert len(matrices(skipped)[0].rows) == 9
    assert matrices(skipped)[0].classes == {}
    assert findings([*foreign, *skipped]) == []


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = world(8, {(0, 2): 3.0, (4, 1): 1.5}, slow_rank=5, factor=2.0, noise=0.03)
    found = reported(rows)
    assert {kind for kind, _, _ in found} == {"rank", "slow", "asymmetric"}
    assert set(reported(rows[::-1])) == set(found)
