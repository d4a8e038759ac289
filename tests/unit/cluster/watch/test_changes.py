"""When a case has changed: on stores with and without a planted step, and case by case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_cases import CASE, case_row
from suites import HEALTHY_TURNS, WATCHED, WatchedStore

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.cluster.baseline.store import launches_of
from commbench.cluster.watch.changes import (
    CaseHistory,
    FirstLook,
    JudgedCase,
    WatchRule,
    changed_facts,
    changed_since,
    first_look,
    judged_case,
    verdict_after_fresh,
)
from commbench.cluster.watch.state import CaseVerdict, KnownChange
from commbench.results.row import Row
from commbench.stats.thresholds import DECIDING_LAUNCHES

RULE = WatchRule(cases=1, delta=0.02)


def healthy_of(*medians_s: float, first: int = 0) -> list[HealthyLaunch]:
    return [
        HealthyLaunch(median_s, f"run{number:03}", "node1", "")
        for number, median_s in enumerate(medians_s, start=first)
    ]


def row_of(median_s: float | None, status: str = "ok") -> Row:
    return case_row(run_id="new", hosts="node1", status=status, median_s=median_s)


def look_at(history: CaseHistory, median_s: float | None, status: str = "ok") -> FirstLook:
    row = row_of(median_s, status)
    return first_look(history, row, launches_of(row, ""), RULE)


def verdict(history: CaseHistory, first_s: float | None, *fresh_s: float | None) -> CaseVerdict:
    """After a turn with these launches; None is one that failed."""
    look = look_at(history, first_s, "failed" if first_s is None else "ok")
    if not look.needs_fresh:
        return history.known
    rows = [row_of(each, "failed" if each is None else "ok") for each in fresh_s]
    fresh = [launch for row in rows for launch in launches_of(row, "")]
    return verdict_after_fresh(history, look, rows, fresh, RULE)


# ---------------------------------------------------------------- planted steps


def first_told(spread: float, loss: float, seed: int, turns: int) -> tuple[int, list[str]] | None:
    """The turn after a step with which it is told, and since which runs; None if it is not."""
    store = WatchedStore(np.random.default_rng(seed), spread)
    for _ in range(HEALTHY_TURNS):
        store.take_turn([0.0] * WATCHED)
    assert not store.changes
    for turn in range(1, turns + 1):
        store.take_turn([loss] * WATCHED)
        if store.changes:
            return turn, [change.since_run for change in store.changes.values()]
    return None


def test_a_step_of_5_percent_is_told_within_three_turns_with_its_beginning() -> None:
    trials = 20
    told = [first_told(0.01, 0.05, seed, 3) for seed in range(trials)]
    assert sum(each is not None for each in told) >= trials - 1
    runs = [int(run) for each in told if each is not None for run in each[1]]
    assert sum(abs(run - HEALTHY_TURNS - 1) <= 1 for run in runs) >= 0.95 * len(runs)


def test_all_cases_of_a_step_are_told_in_the_end() -> None:
    store = WatchedStore(np.random.default_rng(3), 0.02)
    for loss in [0.0] * HEALTHY_TURNS + [0.1] * 12:
        store.take_turn([loss] * WATCHED)
    assert len(store.changes) == WATCHED


def test_stores_without_a_step_have_no_change() -> None:
    told = 0
    for seed in range(20):
        store = WatchedStore(np.random.default_rng([seed, 5]), 0.02)
        for _ in range(30):
            before = len(store.changes)
            store.take_turn([0.0] * WATCHED)
            told += len(store.changes) > before
    assert told <= 6  # of 600 turns: 1 %


@pytest.mark.parametrize(
    ("days", "spread", "turns_a_day", "noise"),
    [(0.03, 0.01, 2, "normal"), (0.02, 0.01, 1, "outliers"), (0.03, 0.03, 2, "exponential")],
)
def test_days_that_differ_are_no_change(
    days: float, spread: float, turns_a_day: int, noise: str
) -> None:
    """docs/watch.md has the shares of many more histories."""
    for seed in range(2):
        store = WatchedStore(
            np.random.default_rng([seed, 7]), spread, days, turns_a_day, noise=noise
        )
        for _ in range(40):
            store.take_turn([0.0] * WATCHED)
            assert not store.changes


def test_a_step_of_5_percent_is_told_within_three_days_that_differ_by_1_percent() -> None:
    told = 0
    for seed in range(5):
        store = WatchedStore(np.random.default_rng([seed, 8]), 0.01, 0.01, turns_a_day=2)
        for loss in [0.0] * 60 + [0.05] * 6:
            store.take_turn([loss] * WATCHED)
        told += bool(store.changes)
    assert told >= 4


def test_a_step_that_ends_is_told_as_well() -> None:
    store = WatchedStore(np.random.default_rng(4), 0.01)
    for loss in [0.0] * HEALTHY_TURNS + [0.2] * 2:
        store.take_turn([loss] * WATCHED)
    assert len(store.changes) == WATCHED
    store.take_turn([0.0] * WATCHED)
    assert not store.changes


# ---------------------------------------------------------------- single verdicts

STEADY = CaseHistory(tuple(healthy_of(*(1e-5 * (1 + 0.001 * number) for number in range(8)))))
SLOWER = CaseHistory(STEADY.healthy, change=KnownChange("SLOWER", "run008", 1.3))


def test_too_few_healthy_launches_give_no_verdict() -> None:
    few = CaseHistory(STEADY.healthy[: DECIDING_LAUNCHES - 1])
    assert RULE.healthy_range(few.healthy, few.healthy) is None
    assert look_at(few, 1.0) == FirstLook("UNDECIDED")


def test_a_case_that_was_not_measured_is_undecided() -> None:
    assert first_look(STEADY, None, [], RULE) == FirstLook("UNDECIDED")
    assert look_at(STEADY, None, "skipped") == FirstLook("UNDECIDED")


def test_what_is_less_than_delta_is_no_change() -> None:
    """Also where all healthy launches took exactly the same time."""
    equal = CaseHistory(tuple(healthy_of(*[1e-5] * 8)))
    assert look_at(equal, 1.015e-5).launch == "SAME"
    assert look_at(equal, 1.025e-5).launch == "SLOWER"
    assert look_at(equal, 0.97e-5).launch == "FASTER"


@pytest.mark.parametrize(
    ("history", "first_s", "fresh_s", "expected"),
    [
        (STEADY, 1.3e-5, [1.3e-5] * 3, "SLOWER"),
        (STEADY, 0.8e-5, [0.8e-5] * 3, "FASTER"),
        (STEADY, 1.3e-5, [1.3e-5, 1.3e-5, 1.005e-5], "SAME"),
        (STEADY, 1.3e-5, [0.8e-5] * 3, "SAME"),
        (STEADY, 1.3e-5, [], "SAME"),
        (STEADY, 1.005e-5, [1.3e-5] * 3, "SAME"),
        (STEADY, None, [None] * 3, "FAILED"),
        (STEADY, None, [None, 1.0e-5, None], "SAME"),
        (SLOWER, 1.0e-5, [1.0e-5] * 3, "SAME"),
        (SLOWER, 1.0e-5, [1.3e-5] * 3, "SLOWER"),
        (SLOWER, 1.0e-5, [0.8e-5] * 3, "FASTER"),
        (SLOWER, 1.3e-5, [1.0e-5] * 3, "SLOWER"),
        (SLOWER, 2.2e-5, [2.2e-5] * 3, "SLOWER"),
        (SLOWER, None, [None] * 3, "FAILED"),
        (SLOWER, None, [None, 1.3e-5, None], "SLOWER"),
    ],
)
def test_only_fresh_launches_begin_and_end_a_change(
    history: CaseHistory, first_s: float | None, fresh_s: list[float | None], expected: str
) -> None:
    assert verdict(history, first_s, *fresh_s) == expected


def judged(
    history: CaseHistory, first_s: float, *fresh_s: float | None, rule: WatchRule = RULE
) -> JudgedCase:
    """After a turn with these launches; None is one that did not measure the case."""

    def launch(median_s: float | None) -> FreshLaunch:
        rows = {} if median_s is None else {"key": row_of(median_s)}
        return FreshLaunch(Path(), rows, {}, 0)

    row = row_of(first_s)
    look = first_look(history, row, launches_of(row, ""), rule)
    fresh = [launch(each) for each in fresh_s]
    return judged_case("key", CASE, history, look, launch(first_s), fresh, rule)


def test_a_change_that_gets_worse_is_told_as_a_new_one() -> None:
    worse = judged(SLOWER, 2.2e-5, *[2.2e-5] * 3)
    assert worse.is_new and worse.change is not None and worse.change.ratio is not None
    assert worse.change.ratio > 2
    assert not judged(SLOWER, 1.35e-5).is_new


NOISY = CaseHistory(tuple(healthy_of(*(1e-5 * (1 + 0.01 * (n % 5 - 2)) for n in range(10)))))
EQUAL = CaseHistory(tuple(healthy_of(*[1e-5] * 8)))


@pytest.mark.parametrize(
    ("history", "first_s", "fresh_s", "text"),
    [
        (NOISY, 1.11e-5, [1.11e-5, 1.09e-5, 1.1e-5], "about 10 % slower, at your --delta 10:"),
        (NOISY, 1.095e-5, [], "about 9.5 % slower, at your --delta 10:"),
        (NOISY, 1e-5 / 1.1, [], "about 10 % faster, at your --delta 10:"),
        (EQUAL, 1.1e-5, [], "about 10 % slower, at your --delta 10:"),
        (
            NOISY,
            1.3e-5,
            [1.0e-5] * 3,
            "SLOWER in this launch alone: 3 fresh ones do not confirm it",
        ),
        (NOISY, 1.05e-5, [], ""),
        (NOISY, 1.0e-5, [], ""),
        (EQUAL, 1.05e-5, [], ""),
    ],
)
def test_a_difference_of_about_delta_is_said_with_its_reason(
    history: CaseHistory, first_s: float, fresh_s: list[float], text: str
) -> None:
    """None of the fresh launches confirms it: half of them are below delta by chance."""
    case = judged(history, first_s, *fresh_s, rule=WatchRule(cases=1, delta=0.1))
    assert (case.verdict, case.change) == ("SAME", None)
    assert case.note[: len(text)] == text and bool(case.note) == bool(text)
    assert case.is_suspect == bool(fresh_s), "without fresh launches the run is healthy"


def test_fresh_launches_that_were_lost_confirm_nothing() -> None:
    lost = judged(STEADY, 1.3e-5, 1.3e-5, None, None)
    assert (lost.verdict, lost.is_suspect) == ("UNDECIDED", True)
    assert lost.note == "1 of 3 fresh launches measured it"


def test_what_is_healthy_on_another_day_is_wider_by_what_days_differ() -> None:
    of_days = [
        HealthyLaunch(time_s * factor, f"run{day}", "node1", str(day))
        for day, time_s in enumerate([1.0e-5, 1.1e-5, 0.95e-5])
        for factor in (1.0, 1.001, 0.999)
    ]
    of_one_day = healthy_of(*(launch.median_s for launch in of_days))
    another_day = [replace(of_days[-1], day="another")]
    by_day = RULE.healthy_range(of_days, another_day)
    same_day = RULE.healthy_range(of_one_day, of_one_day[-1:])
    first_day = RULE.healthy_range(of_one_day, another_day)
    assert by_day is not None and same_day is not None and first_day is not None
    assert by_day.high > 1.03 * same_day.high
    assert first_day.high > 1.03 * same_day.high
    days = RULE.day_levels(of_days)
    assert days is not None and days.between == pytest.approx(0.08, rel=0.2)


# ---------------------------------------------------------------- many turns together

# launches after a step of 4 % that none of them shows alone
WAVE = [1 + 0.02 * (number % 5 - 2) / 2 for number in range(40)]
STEP = healthy_of(*(1e-5 * factor for factor in WAVE))
AFTER = healthy_of(*(1.04e-5 * factor for factor in WAVE[:15]), first=len(STEP))
STEPPED = CaseHistory((*STEP, *AFTER))


def test_what_many_turns_show_must_be_shown_by_all_fresh_launches() -> None:
    look = look_at(STEPPED, 1.04e-5)
    assert (look.launch, look.needs_fresh) == ("SAME", True)
    assert verdict(STEPPED, 1.04e-5, 1.05e-5, 1.03e-5, 1.04e-5) == "SLOWER"
    assert verdict(STEPPED, 1.04e-5, 1.05e-5, 1.01e-5, 1.04e-5) == "SAME"


def test_launches_that_were_kept_aside_count_for_what_many_turns_show() -> None:
    aside = CaseHistory(tuple(STEP), tuple(AFTER))
    assert look_at(aside, 1.04e-5).needs_fresh


# ---------------------------------------------------------------- since when


def test_a_change_begins_with_the_first_run_that_shows_it() -> None:
    """Two runs were a little too fast to be noticed."""
    healthy = healthy_of(10.0, 10.1, 9.9, 10.0, 10.1, 10.9, 10.9)
    new = healthy_of(11.0, 11.1, 11.0, 10.9)
    first = changed_since("SLOWER", healthy, new, "new")
    assert first.since_run == "run005"
    assert first.ratio == pytest.approx(1.09, abs=0.01)


def test_an_old_small_shift_is_not_the_beginning_of_a_large_change() -> None:
    rng = np.random.default_rng(6)
    levels = [1.0] * 60 + [1.015] * 60
    healthy = healthy_of(*(level * rng.lognormal(0, 0.003) for level in levels))
    first = changed_since("SLOWER", healthy, healthy_of(1.1, 1.1, 1.1), "new")
    assert first.since_run == "new"
    assert first.ratio is not None and 1.07 < first.ratio < 1.11


def test_a_failure_begins_with_the_run_that_fails() -> None:
    first = changed_since("FAILED", STEADY.healthy, [], "new")
    assert (first.since_run, first.ratio) == ("new", None)


def record(driver: str, kernel: str, load: float) -> dict[str, Any]:
    node = {
        "host.hostname": "node1",
        "gpu.driver_version": driver,
        "host.kernel": kernel,
        "host.load_1min": load,
    }
    return {"provenance": {"nodes": [node]}}


def test_what_changed_with_it_are_facts_that_differ_and_did_not_vary_before() -> None:
    before = [record("550.54", "6.8", 0.1), record("550.54", "6.9", 0.2)]
    facts = changed_facts(before, [record("570.12", "6.9", 0.3)])
    assert [str(fact) for fact in facts] == ["gpu.driver_version: 550.54 -> 570.12"]
    assert changed_facts([], [record("570.12", "6.9", 0.3)]) == []
