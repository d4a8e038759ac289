"""`commbench locate` as a user runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commbench
from commbench.__main__ import main
from commbench.cluster.node_rounds import Round
from commbench.cluster.node_search import SearchRounds
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
    assert "7 good, 1 bad, 0 undecided" in run.stdout
    assert "Slurm: --exclude=node7" in run.stdout
    record = run.record
    assert (record["search"]["bad"], record["search"]["undecided"]) == (["node7"], [])
    assert record["cases"] == len(run.cases)
    assert set(run.cases.status) == {"ok"}


def test_healthy_nodes_are_good_and_make_the_status_0(world: Callable[..., Any]) -> None:
    run = world(*SIMULATED, "layout=8x1", status=0)
    assert "8 good, 0 bad, 0 undecided" in run.stdout


@pytest.mark.usefixtures("outside_any_world")
def test_an_interrupted_search_goes_on_with_the_rounds_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SearchRounds.choose
    more = {4: Round(((0, 5), (3, 7)), 2), 5: Round(((6, 1),), 1)}

    def interrupted(self: SearchRounds, evidence: Any) -> Round:
        if self.count == 6:
            raise KeyboardInterrupt
        return more[self.count]

    with monkeypatch.context() as patch:
        patch.setattr(SearchRounds, "choose", interrupted)
        words = (*SIMULATED[1:], "layout=8x1", f"output={tmp_path}")
        assert main(list(words)) == 130
    before = commbench.load(tmp_path)
    (folder,) = find_runs(tmp_path)
    seen = []

    def recorded(self: SearchRounds, evidence: Any) -> Round:
        seen.append([set(each.pairs) for each in self._rounds[4:]])
        return real(self, evidence)

    monkeypatch.setattr(SearchRounds, "choose", recorded)
    assert main(["resume", str(folder)]) == 0
    assert seen == [[{(0, 5), (3, 7)}, {(6, 1)}]]
    assert load_run(folder)["search"]["rounds"] == 6
    after = commbench.load(tmp_path)
    assert sorted(after.case_id) == sorted(before.case_id)
    assert set(after.launch) == {0}, "nothing was measured again"


@pytest.mark.long
def test_ranks_of_one_real_node_are_searched(world: Callable[..., Any]) -> None:
    """Whether two cores are even is not known, only that each rank is judged."""
    words = ("backend=tcp", "layout=1x5", "timing=fixed", "timing.repetitions=10", "sizes=[8,1KiB]")
    run = world("commbench", "locate", *words, status=None)
    search = run.record["search"]
    assert 4 <= search["rounds"] <= 8
    assert len(search["log10_odds"]["sends"]) == 5
    assert run.status == (1 if search["bad"] or search["undecided"] else 0), run.explain()


def test_too_few_ranks_are_refused_in_one_line(world: Callable[..., Any]) -> None:
    run = world(*SIMULATED, "layout=1x4", status=2)
    assert run.stderr == (
        "commbench: layout=1x4 has 4 ranks; a search compares them with each other and needs at"
        " least 5\n"
    )
