"""A search plans its rounds as ordinary cases, reads their rows, and gives ranks their groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from composed import settings_of
from sample_cases import case_row

from commbench.cluster.search.node_rounds import Meetings
from commbench.cluster.search.node_search import (
    SearchRounds,
    check_search,
    cluster_of,
    first_pairs,
    pair_times,
    rounds_s,
)
from commbench.cluster.search.pair_times import Cluster
from commbench.cluster.search.suspect_table import Places
from commbench.config.settings import Settings
from commbench.core.case import Planned, World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.units import about_duration
from commbench.measure.plan import duration_s, plan
from commbench.measure.plan_facts import PlanFacts
from commbench.results.row import Measured, Row
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


def row(source: int, destination: int, medians_s: list[float], **more: Any) -> Row:
    values = {
        "status": "ok",
        "order": 3,
        "window": 16,
        "median_s": medians_s[0] if medians_s else None,
    } | more
    return case_row(source=source, destination=destination, visit_medians_s=medians_s, **values)


def search_of(settings: Settings, nodes: int) -> SearchRounds:
    planned = plan(settings, world_of(nodes), FACTS)
    return SearchRounds(settings, world_of(nodes), FACTS, len(planned))


def rows_of(cases: Iterable[Planned], visits: int = 1) -> list[Row]:
    """What these cases leave where each takes 1 us."""
    return [
        row(*map(int, pair.split("-")), [1e-6] * visits, window=planned.case.window)
        for planned in cases
        for pair in str(planned.case.pair).split()
    ]


def test_a_round_is_a_case_of_latency_and_one_of_bandwidth_in_each_direction() -> None:
    cases = [planned.case for planned in plan(searching(), world_of(8), FACTS)]
    bandwidth = {case.pair for case in cases if case.benchmark == "p2p_bandwidth"}
    assert len(bandwidth) == 14, "then the same pairs meet again"
    assert sum(case.benchmark == "p2p_latency" for case in cases) == 7
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


def test_rounds_of_new_pairs_are_new_cases_planned_alike_everywhere() -> None:
    """64 nodes have 63 rounds of different pairs, of which the first 20 are in the plan."""
    settings = searching("layout=64x1")
    cases = search_of(settings, 64).following(22, "libx")
    assert len(cases) == 6
    assert [planned.order for planned in cases] == [*range(60, 66)]
    assert search_of(settings, 64).following(22, "libx") == cases
    assert {planned.case.library for planned in cases} == {"libx"}


def test_rounds_of_the_same_pairs_are_further_visits_of_their_cases() -> None:
    search = search_of(searching(), 8)
    again = [len(search.following(20, None)) for _ in range(3)]
    assert again == [7 * 3, 6 * 3, 0]
    planned = {each.case.case_id for each in plan(searching(), world_of(8), FACTS)}
    search = search_of(searching(), 8)
    assert {each.case.case_id for each in search.following(20, None)} == planned


def test_a_search_ends_after_the_first_rounds_if_no_node_is_suspected() -> None:
    search = search_of(searching("layout=64x1"), 64)
    result = search.result(rows_of(plan(searching("layout=64x1"), world_of(64), FACTS)), [], 1.0)
    assert result is not None and result.is_clean
    assert search.choose(result) == 20
    assert search.following(20, None) == ()
    assert search.choose(None) == 20, "the time of the run is over"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["layout=64x1"], "20 rounds: about {}; up to 140 rounds, {}, if a node is in doubt"),
        (
            ["layout=1x8", "timing.repetitions=9"],
            "20 rounds, 7 of different pairs: about 22.4 s to {}; up to 140 rounds, {},"
            " if a rank is in doubt",
        ),
    ],
)
def test_rounds_are_announced_with_the_further_ones_of_a_doubt(words: list[str], text: str) -> None:
    """A round has three cases, here of 0.5 s and their setup, 0.37 s: about 3 s. How long so many
    repetitions take is not known."""
    settings = searching("timing=quick", "timing.visits=1", "timing.case_s=0.5", *words)
    world = hosted_world(settings.layouts[0].nodes, settings.layouts[0].ranks_per_node)[0]
    planned_s = sum(duration_s(settings, each) for each in plan(settings, world, FACTS))
    round_s = planned_s / len(first_pairs(settings.layouts[0], settings.seed))
    assert round_s == pytest.approx(3.0, rel=0.1)
    times = (about_duration(rounds * round_s) for rounds in (20, 140))
    assert SearchRounds(settings, world, FACTS, 0).rounds_text() == text.format(*times)


@pytest.mark.parametrize(("layout", "pairs"), [("64x1", 20), ("8x1", 7)])
def test_a_plan_has_the_time_of_the_first_rounds_and_of_all_further_ones(
    layout: str, pairs: int
) -> None:
    """Of the pairs that the plan lists; 8 nodes meet in 7 rounds, and then again."""
    settings = searching(f"layout={layout}")
    assert rounds_s(settings, pairs * 1.0, pairs * 3.0) == pytest.approx([20.0, 3 * 140.0])


def test_the_time_of_further_rounds_is_that_of_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = searching("layout=64x1")
    search = search_of(settings, 64)
    rows = [
        replace(each, visit_medians_s=(1.2e-6,)) if 5 in (each.source, each.destination) else each
        for each in rows_of(plan(settings, world_of(64), FACTS))
        if isinstance(each, Measured)
    ]
    further = search.choose(search.result(rows, [], spent_s=80.0)) - 20
    assert further > 0
    assert capsys.readouterr().err == (
        f"commbench: 20 rounds took 80.0 s; a node is in doubt: {further} further rounds,"
        f" about {about_duration(4.0 * further)}\n"
    )


def test_a_search_goes_on_after_the_rounds_of_earlier_starts() -> None:
    settings = searching("layout=64x1")
    first = search_of(settings, 64)
    cases = [*plan(settings, world_of(64), FACTS), *first.following(23, None)]
    again = search_of(settings, 64)
    assert again.begun(rows_of(cases[:-1])) == 23
    assert again.go_on_after(23, None) == tuple(cases[60:])
    assert again.following(24, None) == first.following(24, None)
    assert search_of(settings, 64).begun([]) == 0


def test_visits_of_a_pair_are_times_of_different_rounds() -> None:
    meetings = Meetings(Layout(8, 1), 0)
    first, second = meetings.pairs(2)[0]
    times = pair_times([row(first, second, [1.0, np.e])], meetings, 1)
    assert times.log_s.tolist() == [0.0, 1.0]
    assert (times.case // 3).tolist() == [2, 9]
    assert pair_times([row(first, second, [1.0, 1.0])], meetings, 2).case.tolist() == [6, 6]


def test_rows_without_a_time_are_no_evidence() -> None:
    meetings = Meetings(Layout(8, 1), 0)
    pairs = meetings.pairs(0)
    times = pair_times(
        [
            row(*pairs[0], [1.0]),
            row(*pairs[1], [1.0], window=None),
            row(*pairs[2], [], status="failed"),
        ],
        meetings,
        1,
    )
    assert times.source.tolist() == [pairs[0][0], pairs[1][0]]
    assert times.is_latency.tolist() == [False, True]
    assert len(pair_times([], meetings, 1)) == 0


def test_nodes_have_the_switches_of_their_hosts_and_a_single_one_has_none() -> None:
    switches = {f"n{node}": f"leaf{node // 4}" for node in range(8)}
    hosts = tuple(f"n{rank // 2}" for rank in range(16))
    cluster = cluster_of(switches, Places(Layout(8, 2), hosts))
    assert cluster == Cluster(8, 2, ("leaf0",) * 4 + ("leaf1",) * 4)
    assert cluster_of(switches, Places(Layout(1, 8), ("n1",) * 8)) == Cluster(8)


def test_a_search_needs_three_ranks() -> None:
    check_search(Layout(3, 1))
    with pytest.raises(ConfigError, match=r"layout=2x1 has 2 ranks.*needs at least 3"):
        check_search(Layout(2, 1))
