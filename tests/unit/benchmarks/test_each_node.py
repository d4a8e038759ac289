"""A collective among the ranks of each node: its program, its rows, and what can't run so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from composed import FACTS, settings_of

from commbench.core.case import Planned
from commbench.core.errors import ConfigError
from commbench.core.program import AllReduce, In, Program
from commbench.measure.plan import plan
from commbench.runtime.control import hosted_world

SIMULATED = ("backend=simulated", "nodes=each", "timing=fixed", "timing.repetitions=5")


def planned_of(*words: str, nodes: int = 3, ranks: int = 2) -> Planned:
    settings = settings_of("backend=simulated", "nodes=each", f"layout={nodes}x{ranks}", *words)
    (planned,) = plan(settings, hosted_world(nodes, ranks)[0], FACTS)
    return planned


def test_each_rank_runs_the_operation_in_the_group_of_its_node() -> None:
    planned = planned_of("benchmark=[all_reduce]", "sizes=[64]")
    assert planned.case.node == "0 1 2"
    for rank in range(6):
        (step,) = planned.program(rank).steps
        first = rank - rank % 2
        assert isinstance(step, In) and isinstance(step.step, AllReduce)
        assert step.group == (first, first + 1)
    assert set(planned.inner_groups) == {(0, 1), (2, 3), (4, 5)}
    assert planned.bus_factor == 1.0  # of two ranks, not of six


def test_the_ranks_of_a_single_node_need_no_group() -> None:
    planned = planned_of("benchmark=[all_reduce]", "sizes=[64]", nodes=1)
    assert not planned.program(0).groups and not planned.inner_groups


def test_a_node_that_does_not_take_part_is_idle() -> None:
    planned = planned_of("benchmark=[all_reduce]", "sizes=[64]")
    alone, *_ = planned.case.single_cases
    assert alone.node == "0"
    assert planned.benchmark.program(alone, 2, 6) == Program()
    assert planned.benchmark.active(alone, 6) == [0, 1]


def test_there_is_a_checked_row_for_each_node_and_the_slow_one_is_slow(
    world: Callable[..., Any],
) -> None:
    run = world(
        "commbench",
        *SIMULATED,
        "layout=4x2",
        "benchmark=[all_reduce,all_to_all,barrier,exchange]",
        "sizes=[1KiB]",
        "backend.model.slow_rank=5",
        "backend.model.slow_factor=3",
    )
    rows = run.cases
    assert set(rows.status) == {"ok"} and (rows.wrong_elements == 0).all()
    assert sorted(rows.node.unique()) == ["0", "1", "2", "3"] and len(rows) == 16
    for _, own in rows.groupby("benchmark"):
        times = dict(zip(own.node, own.median_s, strict=True))
        assert times["0"] == times["1"] == times["3"] < times["2"]
    samples = run.samples
    slow = rows[(rows.node == "2") & (rows.benchmark == "barrier")].iloc[0]
    assert set(samples[samples.case_id == slow.case_id]["rank"]) == {4, 5}


def test_one_rank_on_each_node_is_skipped_with_a_reason() -> None:
    planned = planned_of("benchmark=[all_reduce]", "sizes=[64]", ranks=1)
    assert planned.skip is not None and "one rank on each node" in planned.skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("benchmark=[p2p_latency]",), "p2p_latency is not one"),
        (("benchmark=[replay]",), "replay is not one"),
    ],
)
def test_what_has_no_part_for_each_rank_of_a_node_is_refused(
    words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of("backend=simulated", "nodes=each", "layout=2x2", *words)


def test_doubling_measures_1_2_4_nodes_and_all() -> None:
    settings = settings_of("nodes=doubling", "layout=6x2", "backend=simulated")
    assert [str(layout) for layout in settings.layouts] == ["1x2", "2x2", "4x2", "6x2"]
