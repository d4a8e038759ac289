"""When a case has changed: on series with and without a planted step, and case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sample_cases import case_row

from commbench.cluster.baseline_store import HealthyLaunch, launches_of
from commbench.cluster.watch_changes import (
    LEAST_HEALTHY,
    FirstLook,
    WatchRule,
    changed_facts,
    changed_since,
    first_look,
    fresh_verdict,
    healthy_range,
    launch_verdict,
    needs_fresh_launches,
    turn_verdict,
    verdict_after_fresh,
)
from commbench.cluster.watch_state import KnownChange, WatchVerdict

RULE = WatchRule(cases=1, delta=0.02)
FRESH = 3


def healthy_of(*medians_s: float) -> list[HealthyLaunch]:
    return [
        HealthyLaunch(median_s, f"run{number:03}", "node1", "")
        for number, median_s in enumerate(medians_s)
    ]


def row_of(median_s: float | None, status: str = "ok") -> dict[str, Any]:
    return case_row(run_id="new", hosts="node1", status=status, median_s=median_s)


def verdict_of_turn(
    healthy: list[HealthyLaunch], draw: Any, rule: WatchRule = RULE
) -> WatchVerdict:
    """The verdict on an unchanged case after a turn whose launches take the times that are
    drawn."""
    first = launch_verdict(row_of(draw()), healthy, rule)
    if not needs_fresh_launches("unchanged", first):
        return "unchanged"
    fresh = fresh_verdict([row_of(draw()) for _ in range(FRESH)], "unchanged", healthy, rule)
    return turn_verdict("unchanged", first, fresh)


# ---------------------------------------------------------------- simulated series


def test_at_most_one_percent_of_healthy_series_of_100_runs_have_a_change() -> None:
    """In a simulation of 500 series (another seed) it was one; 30 show a rate above 15 %."""
    rng = np.random.default_rng(7)
    series = 30
    changed = 0
    for _ in range(series):
        medians_s = 1e-5 * rng.lognormal(0, 0.02, 100)
        launches = healthy_of(*medians_s)
        for number in range(100):
            times = [medians_s[number], *(1e-5 * rng.lognormal(0, 0.02, FRESH))]
            verdict = verdict_of_turn(launches[:number], iter(times).__next__)
            changed += verdict in ("slower", "faster")
    assert changed == 0


@pytest.mark.parametrize(
    ("cases", "runs", "share"), [(1, 20, 0.95), (1, 30, 0.98), (30, 30, 0.9), (30, 60, 0.97)]
)
def test_a_step_of_10_percent_is_found_within_3_runs(cases: int, runs: int, share: float) -> None:
    rng = np.random.default_rng(8)
    rule = WatchRule(cases, 0.02)
    series = 150
    within_3 = 0
    for _ in range(series):
        healthy = healthy_of(*(1e-5 * rng.lognormal(0, 0.02, runs)))
        verdicts = [
            verdict_of_turn(healthy, lambda: 1.1e-5 * rng.lognormal(0, 0.02), rule)
            for _ in range(3)
        ]
        within_3 += "slower" in verdicts
        assert "faster" not in verdicts
    assert within_3 >= share * series


def test_launches_of_a_turn_that_move_together_are_no_confirmation_beyond_the_first() -> None:
    """A machine whose turns differ by 5 %, and whose launches within a turn do not at all: fresh
    launches prove nothing there."""
    rng = np.random.default_rng(9)
    changed = 0
    for _ in range(300):
        healthy = healthy_of(*(1e-5 * rng.lognormal(0, 0.05, 20)))
        time_s = 1e-5 * rng.lognormal(0, 0.05)
        changed += verdict_of_turn(healthy, lambda time_s=time_s: time_s) != "unchanged"
    assert changed <= 9  # 1 % of 300 turns is 3; 10 or more have a probability below 0.2 %


# ---------------------------------------------------------------- single verdicts

STEADY = healthy_of(*(1e-5 * (1 + 0.001 * number) for number in range(8)))


def test_too_few_healthy_launches_give_no_verdict() -> None:
    few = STEADY[: LEAST_HEALTHY - 1]
    assert healthy_range(few, 0.005, 0.02) is None
    assert launch_verdict(row_of(1.0), few, RULE) == "undecided"


def test_a_case_that_was_not_measured_is_undecided() -> None:
    assert launch_verdict(None, STEADY, RULE) == "undecided"
    assert launch_verdict(row_of(None, "skipped"), STEADY, RULE) == "undecided"


def test_what_is_less_than_delta_is_no_change() -> None:
    """Also where all healthy launches took exactly the same time."""
    equal = healthy_of(*[1e-5] * 8)
    assert launch_verdict(row_of(1.015e-5), equal, RULE) == "unchanged"
    assert launch_verdict(row_of(1.025e-5), equal, RULE) == "slower"
    assert launch_verdict(row_of(0.97e-5), equal, RULE) == "faster"


@pytest.mark.parametrize("status", ["failed", "invalid"])
def test_a_case_that_fails_in_all_fresh_launches_has_failed(status: str) -> None:
    bad = row_of(None, status)
    assert launch_verdict(bad, [], RULE) == "failed"
    assert fresh_verdict([bad, bad, bad], "unchanged", [], RULE) == "failed"
    assert fresh_verdict([bad, row_of(1e-5), bad], "unchanged", STEADY, RULE) == "unchanged"
    assert fresh_verdict([None, None], "unchanged", STEADY, RULE) == "undecided"


def test_each_fresh_launch_must_show_a_new_change_and_their_mean_that_one_lasts() -> None:
    rows = [row_of(1.3e-5), row_of(1.3e-5), row_of(1.005e-5)]
    assert fresh_verdict(rows, "unchanged", STEADY, RULE) == "unchanged"
    assert fresh_verdict(rows, "slower", STEADY, RULE) == "slower"
    assert fresh_verdict([row_of(1.3e-5)] * 3, "unchanged", STEADY, RULE) == "slower"


@pytest.mark.parametrize(
    ("known", "launch", "fresh", "verdict"),
    [
        ("unchanged", "slower", "slower", "slower"),
        ("unchanged", "slower", "unchanged", "unchanged"),
        ("unchanged", "slower", "faster", "unchanged"),
        ("unchanged", "failed", "failed", "failed"),
        ("unchanged", "slower", "undecided", "unchanged"),
        ("slower", "unchanged", "unchanged", "unchanged"),
        ("slower", "unchanged", "slower", "slower"),
        ("slower", "failed", "failed", "failed"),
        ("failed", "slower", "slower", "slower"),
        ("slower", "unchanged", "undecided", "slower"),
    ],
)
def test_only_fresh_launches_begin_and_end_a_change(
    known: WatchVerdict, launch: WatchVerdict, fresh: WatchVerdict, verdict: WatchVerdict
) -> None:
    assert needs_fresh_launches(known, launch)
    assert turn_verdict(known, launch, fresh) == verdict


def test_what_is_known_or_was_not_measured_is_not_measured_again() -> None:
    assert not needs_fresh_launches("slower", "slower")
    assert not needs_fresh_launches("unchanged", "unchanged")
    assert not needs_fresh_launches("slower", "undecided")


# ---------------------------------------------------------------- many turns together

# eight launches after a step of 4 % that none of them shows alone
STEP = healthy_of(*(1e-5 * (1 + 0.02 * (number % 5 - 2) / 2) for number in range(40)))
STEPPED = [*STEP, *healthy_of(*(1.04e-5 * (1 + 0.02 * (n % 5 - 2) / 2) for n in range(15)))]
KNOWN = KnownChange("slower", "run040", 1.04, middle_s=1.02e-5, recent_s=(1.04e-5,) * 4)


def look_at(change: KnownChange | None, median_s: float | None, status: str = "ok") -> FirstLook:
    row = row_of(median_s, status)
    return first_look(change, row, STEPPED, launches_of(row, ""), RULE)


def test_what_many_turns_show_must_be_shown_by_fresh_launches() -> None:
    look = look_at(None, 1.04e-5)
    assert (look.launch, look.needs_fresh) == ("unchanged", True)

    def verdict(*medians_s: float) -> WatchVerdict:
        return verdict_after_fresh(None, look, [row_of(each) for each in medians_s], STEPPED, RULE)

    assert verdict(1.05e-5, 1.03e-5, 1.01e-5) == "slower"
    assert verdict(1.05e-5, 1.01e-5, 1.01e-5) == "unchanged"
    assert verdict() == "unchanged"


def test_what_many_turns_have_shown_ends_when_as_many_show_it_no_more() -> None:
    assert not look_at(KNOWN, 1.00e-5).needs_fresh, "one of four"
    back = replace(KNOWN, recent_s=(1.04e-5, 1.00e-5, 1.00e-5, 1.00e-5))
    look = look_at(back, 1.01e-5)
    assert look.needs_fresh
    assert verdict_after_fresh(back, look, [row_of(1.00e-5)], STEPPED, RULE) == "unchanged"
    assert verdict_after_fresh(back, look, [row_of(1.05e-5)], STEPPED, RULE) == "slower"


def test_a_failure_counts_though_a_small_change_is_known() -> None:
    look = look_at(KNOWN, None, "failed")
    assert look.needs_fresh
    bad = row_of(None, "failed")
    assert verdict_after_fresh(KNOWN, look, [bad, bad], STEPPED, RULE) == "failed"
    assert verdict_after_fresh(KNOWN, look, [bad, row_of(1e-5)], STEPPED, RULE) == "slower"


# ---------------------------------------------------------------- since when


def test_a_change_begins_with_the_first_run_that_shows_it() -> None:
    """Two runs were a little too fast to be noticed."""
    healthy = healthy_of(10.0, 10.1, 9.9, 10.0, 10.1, 10.9, 10.9)
    new = healthy_of(11.0, 11.1, 11.0, 10.9)
    first = changed_since("slower", healthy, new, "new")
    assert first.run_id == "run005"
    assert first.ratio == pytest.approx(1.09, abs=0.01)


def test_a_failure_begins_with_the_run_that_fails() -> None:
    first = changed_since("failed", STEADY, [], "new")
    assert (first.run_id, first.ratio) == ("new", None)


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
