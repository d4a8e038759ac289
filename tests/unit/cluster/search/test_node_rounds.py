"""Rounds of a search: every node in one pair at most, no links within a node."""

from __future__ import annotations

from collections import Counter

from loops import for_each

from commbench.cluster.search.node_rounds import Meetings, search_refusal
from commbench.core.layout import Layout


def meetings(layout: str, seed: int = 1) -> Meetings:
    return Meetings(Layout.parse(layout), seed)


@for_each("layout", ["2x3", "3x1", "3x4", "4x2", "5x8", "16x4", "33x1", "1x6", "1x7"])
def test_all_ranks_of_different_nodes_meet_once_in_a_period(layout: str) -> None:
    own = meetings(layout)
    met: Counter[frozenset[int]] = Counter()
    for number in range(own.period):
        members = [rank for pair in own.pairs(number) for rank in pair]
        assert len(set(members)) == len(members)
        met.update(frozenset(pair) for pair in own.pairs(number))
    nodes, ranks = own.layout.nodes, own.layout.ranks_per_node
    others = (nodes - 1) * ranks if nodes > 1 else ranks - 1
    assert set(met.values()) == {1}
    assert len(met) == own.layout.size * others // 2
    assert all(nodes == 1 or first // ranks != second // ranks for first, second in met)
    assert own.pairs(own.period + 1) == own.pairs(1)


@for_each("layout", ["3x1", "4x2", "5x1", "8x1", "33x1"])
def test_each_node_has_the_visits_that_are_asked_for(layout: str) -> None:
    own = meetings(layout)
    ranks = [
        rank for number in range(own.rounds(20)) for pair in own.pairs(number) for rank in pair
    ]
    visits = Counter(ranks)
    assert 19 <= min(visits.values()) <= max(visits.values()) <= 21


def test_the_order_depends_on_the_seed_alone() -> None:
    assert meetings("64x1").pairs(0) == meetings("64x1").pairs(0)
    assert meetings("64x1").pairs(0) != meetings("64x1", seed=2).pairs(0)


def test_a_search_needs_three_ranks() -> None:
    assert search_refusal(Layout(3, 1)) is None
    assert search_refusal(Layout(2, 2)) is None
    assert "at least 3" in str(search_refusal(Layout(2, 1)))
    assert "at least 3" in str(search_refusal(Layout(1, 2)))
