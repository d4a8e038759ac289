"""When a case has changed: on stores with and without a planted step, and case by case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from suites import HEALTHY_TURNS, WATCHED, WatchedStore
from watched_cases import (
    RULE,
    SLOWER,
    STEADY,
    STEPPED,
    healthy_of,
    launch_of,
    launch_with,
    turn_of,
)

from commbench.cluster.watch.changes import JudgedCase, judged_case
from commbench.cluster.watch.history import CaseHistory
from commbench.cluster.watch.rule import WatchRule


def judged(
    history: CaseHistory,
    first_s: float | None,
    *fresh_s: float | None,
    rule: WatchRule = RULE,
) -> JudgedCase:
    """After a turn with these launches; None is one that failed."""
    turn = turn_of(history, launch_of(first_s), rule)
    return judged_case(turn, [launch_of(each) for each in fresh_s], rule)


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


@pytest.mark.parametrize(
    ("history", "first_s", "fresh_s", "kind", "verdict"),
    [
        (STEADY, 1.3e-5, [1.3e-5] * 3, "begun", "SLOWER"),
        (STEADY, 0.8e-5, [0.8e-5] * 3, "begun", "FASTER"),
        (STEADY, 1.3e-5, [1.3e-5, 1.3e-5, 1.005e-5], "denied", "SAME"),
        (STEADY, 1.3e-5, [0.8e-5] * 3, "denied", "SAME"),
        (STEADY, 1.3e-5, [None] * 3, "denied", "SAME"),
        (STEADY, 1.005e-5, [], "unasked", "SAME"),
        (STEADY, None, [None] * 3, "begun", "FAILED"),
        (STEADY, None, [None, 1.0e-5, None], "denied", "SAME"),
        (SLOWER, 1.0e-5, [1.0e-5] * 3, "ended", "SAME"),
        (SLOWER, 1.0e-5, [1.3e-5] * 3, "denied", "SLOWER"),
        (SLOWER, 1.0e-5, [0.8e-5] * 3, "begun", "FASTER"),
        (SLOWER, 1.3e-5, [], "unasked", "SLOWER"),
        (SLOWER, 2.2e-5, [2.2e-5] * 3, "begun", "SLOWER"),
        (SLOWER, None, [None] * 3, "begun", "FAILED"),
        (SLOWER, None, [None, 1.3e-5, None], "denied", "SLOWER"),
    ],
)
def test_only_fresh_launches_begin_and_end_a_change(
    history: CaseHistory,
    first_s: float | None,
    fresh_s: list[float | None],
    kind: str,
    verdict: str,
) -> None:
    case = judged(history, first_s, *fresh_s)
    assert (case.outcome.kind, case.verdict) == (kind, verdict)
    assert verdict == ("SAME" if case.change is None else case.change.verdict)
    assert (case.change is history.change) == (kind in ("unasked", "denied"))


def test_a_change_that_gets_worse_is_told_as_a_new_one() -> None:
    worse = judged(SLOWER, 2.2e-5, *[2.2e-5] * 3)
    assert worse.is_new and worse.change is not None and worse.change.ratio is not None
    assert worse.change.ratio > 2
    assert not judged(SLOWER, 1.35e-5).is_new


NOISY = CaseHistory(tuple(healthy_of(*(1e-5 * (1 + 0.01 * (n % 5 - 2)) for n in range(10)))))
EQUAL = CaseHistory(tuple(healthy_of(*[1e-5] * 8)))
OF_DAYS = CaseHistory(
    tuple(
        replace(launch, day=day)
        for day, level in (("Mon", 1.0), ("Tue", 1.03), ("Wed", 0.98), ("Thu", 1.02))
        for launch in healthy_of(*(1e-5 * level * noise for noise in (1.0, 1.001, 1.002)))
    )
)


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
    assert case.outcome.why[: len(text)] == text and bool(case.outcome.why) == bool(text)
    assert case.is_suspect == bool(fresh_s), "without fresh launches the run is healthy"


@pytest.mark.parametrize(
    ("history", "first_s", "fresh_s", "why"),
    [
        (SLOWER, 1.0e-5, [1.3e-5] * 3, "not SLOWER as before in this launch: 3 fresh ones are"),
        (SLOWER, 2.2e-5, [1.3e-5] * 3, "not SLOWER as before in this launch: 3 fresh ones are"),
        (SLOWER, None, [1.3e-5], "not SLOWER as before in this launch: 1 fresh one is"),
        (OF_DAYS, 1.13e-5, [1.13e-5], "SLOWER in this launch: 1 fresh one was too, as days may be"),
    ],
)
def test_what_fresh_launches_deny_is_said_with_what_they_show(
    history: CaseHistory, first_s: float | None, fresh_s: list[float], why: str
) -> None:
    case = judged(history, first_s, *fresh_s)
    assert (case.outcome.kind, case.outcome.why) == ("denied", why)


def test_fresh_launches_that_were_lost_confirm_nothing() -> None:
    fresh = [launch_of(1.3e-5), launch_with(None), launch_with(None)]
    lost = judged_case(turn_of(STEADY, launch_of(1.3e-5)), fresh, RULE)
    assert (lost.verdict, lost.is_suspect) == ("UNDECIDED", True)
    assert lost.outcome.why == "1 of 3 fresh launches measured it"


def test_what_many_turns_show_must_be_shown_by_all_fresh_launches() -> None:
    assert judged(STEPPED, 1.04e-5, 1.05e-5, 1.03e-5, 1.04e-5).verdict == "SLOWER"
    assert judged(STEPPED, 1.04e-5, 1.05e-5, 1.01e-5, 1.04e-5).verdict == "SAME"
