"""What is known of a case before a turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_cases import CASE, case_row
from watched_cases import SLOWER, healthy_of

from commbench.cluster.baseline.store import StoredRun
from commbench.cluster.baseline.suite_key import suite_key
from commbench.cluster.watch.history import case_histories
from commbench.cluster.watch.state import KnownChange, WatchState
from commbench.results.row import Row

KEY = suite_key(case_row())
STATE = WatchState((), (KEY,))


def row(run_id: str) -> Row:
    return case_row(run_id=run_id, hosts="node1", status="ok", median_s=1e-5)


def stored(run_id: str) -> StoredRun:
    return StoredRun(Path(run_id), "h", {"started_at": "2026-11-01T06:00"}, [row(run_id)])


def aside(state: WatchState, *run_ids: str) -> list[str]:
    """The runs beside the store that count, where it has `run2`."""
    history = case_histories(state, [stored("run2")], map(row, run_ids))[KEY]
    assert [(each.run_id, each.day) for each in history.healthy] == [("run2", "2026-11-01")]
    return [each.run_id for each in history.aside]


def test_runs_beside_the_store_count_but_for_those_that_the_user_has_added_to_it() -> None:
    assert aside(STATE, "run1", "run2", "run3") == ["run1", "run3"]


def test_runs_beside_the_store_do_not_count_for_a_case_that_has_a_change() -> None:
    assert aside(replace(STATE, changes={KEY: KnownChange("SLOWER", "run1")}), "run3") == []


def test_runs_until_a_change_has_ended_do_not_count() -> None:
    assert aside(replace(STATE, ended={KEY: "run3"}), "run1", "run3", "run4") == ["run4"]


def test_a_case_without_any_run_has_an_empty_history() -> None:
    key = suite_key(CASE)
    history = case_histories(WatchState((), (key,)), [], [])[key]
    assert (history.series, history.known) == ([], "SAME")


@pytest.mark.parametrize(
    ("median_s", "is_shown"),
    [(1.0e-5, False), (1.13e-5, False), (1.16e-5, True), (1.3e-5, True), (1.6e-5, False)],
)
def test_a_known_change_is_shown_from_half_of_it_to_one_and_a_half(
    median_s: float, is_shown: bool
) -> None:
    assert SLOWER.shows_change(healthy_of(median_s)) == is_shown
