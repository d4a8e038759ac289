"""A search plans its rounds as ordinary cases, reads their rows, and gives ranks their groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from composed import settings_of

from commbench.cluster.node_rounds import Round
from commbench.cluster.node_search import (
    SearchRounds,
    check_search,
    pair_times,
    places_of,
)
from commbench.config.settings import Settings
from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.measure.plan import plan
from commbench.measure.plan_facts import PlanFacts
from commbench.runtime.control import hosted_world

FACTS = PlanFacts(memory_bytes=2**36, cache_bytes=2**25, cores=8)


def searching(*words: str) -> Settings:
    return settings_of(
        "backend=simulated",
        "pairs=search",
        "schedule=rounds",
        "benchmark=[p2p_bandwidth,p2p_latency]",
        "sizes=[8,1KiB]",
        "layout=8x1",
        *words,
    )


def world_of(nodes: int) -> World:
    return hosted_world(nodes, 1)[0]


def row(source: int, destination: int, medians_s: list[float], **more: Any) -> dict[str, Any]:
    plain = {"status": "ok", "order": 3, "window": 16}
    return (
        plain | {"source": source, "destination": destination, "visit_medians_s": medians_s} | more
    )


def test_the_first_rounds_are_four_of_latency_and_four_in_each_direction() -> None:
    cases = [planned.case for planned in plan(searching(), world_of(8), FACTS)]
    bandwidth = {case.pair for case in cases if case.benchmark == "p2p_bandwidth"}
    assert len(bandwidth) == 8
    assert sum(case.benchmark == "p2p_latency" for case in cases) == 4
    turned = {
        " ".join("-".join(reversed(pair.split("-"))) for pair in str(text).split())
        for text in bandwidth
    }
    assert turned == bandwidth
    assert all(len(case.pairs) == 4 for case in cases)


def test_bandwidth_has_the_largest_size_and_latency_the_smallest() -> None:
    sizes = {
        (planned.case.benchmark, planned.case.message_bytes)
        for planned in plan(searching(), world_of(8), FACTS)
    }
    assert sizes == {("p2p_bandwidth", 1024), ("p2p_latency", 8)}


def test_a_further_round_is_planned_alike_everywhere_and_repeated_for_its_visits() -> None:
    decided = Round.of_plain(Round(((0, 5), (3, 1)), 3).plain())
    ids = []
    for _ in range(2):
        rounds = SearchRounds(searching(), world_of(8), FACTS, 12)
        cases = rounds.further(decided, "libx")
        assert [planned.order for planned in cases] == [12, 13, 14]
        assert {planned.case.pair for planned in cases} == {"0-5 3-1", "5-0 1-3"}
        assert [rounds.repeated() for _ in range(3)] == [cases, cases, ()]
        assert rounds.count == 5
        ids.append([planned.case.case_id for planned in cases])
    assert ids[0] == ids[1]


def test_no_pairs_end_the_search() -> None:
    rounds = SearchRounds(searching(), world_of(8), FACTS, 12)
    assert rounds.further(Round((), 1), None) == ()
    assert (rounds.repeated(), rounds.count) == ((), 4)


def test_a_search_goes_on_after_the_rounds_of_earlier_starts() -> None:
    """Both rounds are known from their rows, the second from a single one."""
    first = SearchRounds(searching(), world_of(8), FACTS, 12)
    decided = [Round(((0, 5), (3, 1)), 3), Round(((2, 4),), 7)]
    cases = [planned for each in decided for planned in first.further(each, None)]
    rows = [
        row(*map(int, pair.split("-")), [1e-6] * 3, order=planned.order)
        for planned in cases[:3]
        for pair in str(planned.case.pair).split()
    ]
    (turned,) = [each for each in cases if each.case.pair == "4-2"]
    rows.append(row(4, 2, [], order=turned.order, status="failed"))
    rows.append(row(6, 7, [1e-6], order=11))  # of a random round
    again = SearchRounds(searching(), world_of(8), FACTS, 12)
    rounds = again.of_rows(rows)
    assert [set(each.pairs) for each in rounds] == [{(0, 5), (3, 1)}, {(2, 4)}]
    assert rounds[0].visits == 3
    planned = again.go_on_after(rounds, None)
    assert [each.order for each in planned] == [each.order for each in cases]
    assert again.repeated() == ()
    assert again.count == first.count
    assert again.of_rows([]) == []


def test_rows_without_a_time_are_no_evidence() -> None:
    times = pair_times(
        [
            row(0, 1, [1.0, np.e]),
            row(2, 3, [1.0], window=None),
            row(4, 5, [], status="failed"),
        ]
    )
    assert times.source.tolist() == [0, 2]
    assert times.is_latency.tolist() == [False, True]
    assert times.log_s.tolist() == [0.5, 0.0]
    assert times.visits.tolist() == [2, 1]
    assert len(pair_times([])) == 0


def test_the_groups_are_nodes_of_several_ranks_or_named_switches() -> None:
    switches = {f"n{node}": f"leaf{node // 4}" for node in range(8)}
    by_switch = places_of(switches, Layout(8, 1), [f"n{node}" for node in range(8)])
    assert by_switch.groups == ("leaf0", "leaf1")
    by_node = places_of(switches, Layout(2, 4), ["a"] * 4 + ["b"] * 4)
    assert by_node.cluster.group_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert places_of(switches, Layout(1, 8), ["a"] * 8).groups == ()


def test_a_search_needs_five_ranks() -> None:
    check_search(Layout(5, 1))
    with pytest.raises(ConfigError, match=r"layout=2x2 has 4 ranks.*needs at least 5"):
        check_search(Layout(2, 2))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("benchmark=all_reduce", "pairs of ranks, which all_reduce has none of"),
        ("schedule=serial", "it needs schedule=rounds"),
        ("overlap=sleep", "use overlap=none"),
        ("layout=[8x1,5x1]", "takes one layout"),
        ("search.slowdown=0", "search.slowdown=0.0 must be at least 0.01"),
        ("search.switches=[a]", "search.switches"),
        ("search.size=3", "search.size"),
    ],
)
def test_a_search_that_can_not_be_is_refused_in_one_line(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        searching(word)
    assert "\n" not in str(refused.value)
