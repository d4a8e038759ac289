"""`commbench locate` as a user runs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commbench
from commbench.__main__ import main
from commbench.cluster.search.node_search import SearchRounds
from commbench.measure.case import CaseVisit
from commbench.measure.visit_setup import VisitSetup
from commbench.results.load import find_runs, load_run

SIMULATED = (
    "commbench",
    "locate",
    "backend=simulated",
    "sizes=[8,1KiB]",
    "window=2",
    "timing=fixed",
    "timing.repetitions=10",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
    "backend.model.noise=0.02",
)


def test_a_slow_node_is_named_stored_and_makes_the_status_1(world: Callable[..., Any]) -> None:
    run = world(
        *SIMULATED,
        "layout=8x1",
        "backend.model.slow_rank=7",
        "backend.model.slow_factor=1.5",
        status=1,
    )
    assert run.stdout.startswith("SLOWER: node7; Slurm: --exclude=node7; Kubernetes")
    assert "7 SAME, 1 SLOWER, 0 UNDECIDED" in run.stdout
    record = run.record
    assert (record["search"]["bad"], record["search"]["undecided"]) == (["node7"], [])
    assert record["cases"] == len(run.cases)
    assert set(run.cases.status) == {"ok"}


def test_pairs_that_meet_first_in_a_further_round_are_on_their_first_visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They warm up as the pairs of the first rounds did: a connection is as new."""
    numbers = defaultdict[str, list[int]](list)

    class Seen(CaseVisit):
        def __init__(self, setup: VisitSetup) -> None:
            numbers[setup.planned.case.case_id].append(setup.number)
            super().__init__(setup)

    monkeypatch.setattr("commbench.measure.session.CaseVisit", Seen)
    slow = ("backend.model.slow_rank=7", "backend.model.slow_factor=1.5")
    assert main([*SIMULATED[1:], "layout=22x1", *slow, f"output={tmp_path / 'results'}"]) == 1
    first_rounds = 3 * 20
    assert len(numbers) > first_rounds, "pairs that the first rounds did not have"
    assert any(len(visits) > 1 for visits in numbers.values())
    assert all(visits == [*range(1, len(visits) + 1)] for visits in numbers.values())


def test_healthy_nodes_are_good_and_make_the_status_0(world: Callable[..., Any]) -> None:
    run = world(*SIMULATED, "layout=8x1", status=0)
    assert run.stdout.startswith("SAME: all 8 nodes, unless 6 or more")
    assert run.record["search"]["rounds"] == 20


def test_a_slow_rank_of_three_nodes_makes_its_node_bad(world: Callable[..., Any]) -> None:
    slow = ("backend.model.slow_rank=3", "backend.model.slow_factor=2")
    run = world(*SIMULATED, "layout=3x2", "backend.model.noise=0.01", *slow, status=1)
    assert run.record["search"]["nodes"] == ["SAME", "SLOWER", "SAME"]
    assert not {"0-1", "2-3", "4-5"} & set(run.cases.pair), "links within a node are left out"


def test_two_nodes_are_not_decided_and_make_the_status_1(world: Callable[..., Any]) -> None:
    run = world(*SIMULATED, "layout=2x2", status=1)
    assert run.stdout.startswith("UNDECIDED: all 2 nodes\n")
    assert run.record["reason"] == "0 SAME, 0 SLOWER, 2 UNDECIDED"


@pytest.mark.usefixtures("outside_any_world")
def test_an_interrupted_search_goes_on_with_the_rounds_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: SearchRounds, result: Any) -> int:
        if self.count == 21:
            raise KeyboardInterrupt
        return 21

    with monkeypatch.context() as patch:
        patch.setattr(SearchRounds, "choose", interrupted)
        words = (*SIMULATED[1:], "layout=22x1", f"output={tmp_path}")
        assert main(list(words)) == 130
    before = commbench.load(tmp_path)
    (folder,) = find_runs(tmp_path)
    assert main(["resume", str(folder)]) == 0
    assert load_run(folder)["search"]["rounds"] == 21
    after = commbench.load(tmp_path)
    assert sorted(after.case_id) == sorted(before.case_id)
    assert set(after.launch) == {0}, "nothing was measured again"


@pytest.mark.usefixtures("outside_any_world")
def test_an_interrupted_search_of_few_nodes_goes_on_with_further_visits_of_their_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: SearchRounds, result: Any) -> int:
        if self.count == 14:
            raise KeyboardInterrupt
        return 20

    slow = ("backend.model.slow_rank=7", "backend.model.slow_factor=1.5")
    with monkeypatch.context() as patch:
        patch.setattr(SearchRounds, "choose", interrupted)
        assert main([*SIMULATED[1:], "layout=8x1", *slow, f"output={tmp_path}"]) == 130
    (folder,) = find_runs(tmp_path)
    assert main(["resume", str(folder)]) == 1
    record = load_run(folder)
    search = record["search"]
    assert (search["bad"], search["rounds"] > 20) == (["node7"], True)
    visits = commbench.load(tmp_path).visit_medians_s.map(len)
    assert visits.sum() == 12 * search["rounds"]
    assert record["cases"] == len(visits), "the total of the progress, as [84/84]"


@pytest.mark.long
def test_ranks_of_one_real_node_are_searched(world: Callable[..., Any]) -> None:
    """Whether two cores are even is not known, only that each rank is judged."""
    words = ("backend=tcp", "layout=1x5", "timing=fixed", "timing.repetitions=10", "sizes=[8,1KiB]")
    run = world("commbench", "locate", *words, status=None)
    search = run.record["search"]
    assert search["rounds"] >= 25
    assert len(search["longer_by"]["sends"]) == 5
    assert run.status == (1 if search["bad"] or search["undecided"] else 0), run.explain()


def test_too_few_ranks_are_refused_in_one_line(world: Callable[..., Any]) -> None:
    run = world(*SIMULATED, "layout=1x2", status=2)
    assert run.stderr == (
        "commbench: layout=1x2 has 2 ranks; a search compares them with each other and needs at"
        " least 3\n"
    )
