"""The recorder: which cases are visited again, and for how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from composed import FACTS, settings_of

from commbench.core.case import Planned, World
from commbench.measure import conditions, recorder
from commbench.measure.conditions import Conditions, ConditionsReader
from commbench.measure.plan import plan
from commbench.measure.recorder import Recorder
from commbench.measure.samples import Block, Refused, Samples
from commbench.measure.time_limits import spacing_s
from commbench.measure.transports import TransportEvidence
from commbench.results.fan_out import FanOut
from commbench.runtime.control import hosted_world

WORLD = World(0, 2, ((0, 1),), (0,))
AROUND = Conditions({}, {}, 8, 1, 2**20, TransportEvidence(), WORLD, ())
OWN_S = 10.0  # of a case


class Run:
    """Cases whose visits last as long and come to such medians as told; no clock."""

    def __init__(self, *words: str, cases: int) -> None:
        sizes = f"sizes=[{','.join(str(8 * n) for n in range(1, cases + 1))}]"
        own = (
            "timing=default",
            f"timing.case_s={OWN_S}",
            "layout=1x2",
            "benchmark=all_reduce",
            sizes,
        )
        self.settings = replace(settings_of("backend=simulated", *own, *words), writers=())
        self.cases = tuple(
            replace(planned, case=replace(planned.case, engine="python"))
            for planned in plan(self.settings, hosted_world(1, 2)[0], FACTS)
        )
        self.run: dict[str, Any] = {
            "run_id": "r",
            "sweep_id": "s",
            "launches": {"planned": 1, "began": [0], "spent_s": 0.0},
        }
        self.recorder = Recorder(self.settings, self.run, cases)
        self.recorder.published.writers = FanOut([])
        self.conditions = AROUND

    def visit(self, planned: Planned, median_s: float, spent_s: float, wrong: int = 0) -> None:
        elapsed = np.full(20, round(1e9 * median_s), np.int64)
        stamps = np.stack([np.zeros((2, 20), np.int64), np.tile(elapsed, (2, 1))], axis=2)
        blocks = Block("connect", 0, stamps[:, :1]), Block("measure", 1, stamps)
        samples = Samples((0, 1), blocks, 1, "ci", wrong, spent_s=spent_s)
        self.recorder.record(planned, samples, self.conditions, datetime.now(timezone.utc))

    def passes(self, visit: Any, wait_s: float = 0.0) -> dict[int, int]:
        """The number of visits of each case, by its size; `visit` gives median and duration from
        size and number."""
        counts = dict.fromkeys((planned.case.message_bytes for planned in self.cases), 0)
        cases = self.cases
        number = 0
        while cases:
            number += 1
            for planned in cases:
                counts[planned.case.message_bytes] = number
                self.visit(planned, *visit(planned.case.message_bytes, number))
            chosen = self.recorder.next_pass(cases, wait_s)
            cases = tuple(planned for planned in cases if planned.order in chosen)
        return counts


def swaying(number: int, share: float = 0.025) -> float:
    return 1e-3 * (1 + share * (number % 2))


def test_time_that_a_certain_case_leaves_goes_to_the_one_that_is_not() -> None:
    def visit(size: int, number: int) -> tuple[float, float]:
        return (1e-3, 0.1) if size > 8 else (swaying(number), 1.6)

    alone = Run(cases=1)
    beside = Run(cases=2)
    assert alone.passes(visit) == {8: 6}
    assert beside.passes(visit) == {8: 12, 16: 6}, "at most twice its own time"
    assert beside.recorder.published.rows[beside.cases[0].case.case_id].stop_reason in (
        "ci",
        "budget",
    )


@pytest.mark.parametrize("cases", [3, 8])
def test_all_cases_together_take_no_more_than_their_time(cases: int) -> None:
    spent: list[float] = []

    def visit(size: int, number: int) -> tuple[float, float]:
        calm = size <= 8 * (cases // 2)
        spent.append(1.0 if calm else 1.6)
        return 1e-3 if calm else swaying(number), spent[-1]

    run = Run(cases=cases)
    counts = run.passes(visit)
    assert set(counts.values()) > {6}
    assert sum(spent) <= cases * OWN_S


def test_a_case_that_more_time_would_not_help_does_not_get_it() -> None:
    def visit(size: int, number: int) -> tuple[float, float]:
        return swaying(number, share=1.0) if size == 8 else 1e-3, 1.0

    run = Run(cases=4)
    assert set(run.passes(visit).values()) == {6}
    reasons = {row.message_bytes: row.stop_reason for row in run.recorder.published.rows.values()}
    assert reasons[8] == "noise_stable" and reasons[16] == "ci"


@pytest.mark.parametrize(("wrong", "further"), [((), True), ((0,), True), ((0, 1), False)])
def test_another_launch_follows_while_some_case_has_a_number(
    wrong: tuple[int, ...], further: bool
) -> None:
    run = Run("timing.launches=2", cases=2)
    for planned in run.cases:
        run.visit(planned, 1e-3, 0.1, wrong=3 if planned.order in wrong else 0)
    assert not run.recorder.more_launches, "there is one launch"
    run.run["launches"]["planned"] = 2
    assert run.recorder.more_launches is further


def test_the_wait_between_passes_is_a_part_of_the_time_of_the_cases_that_wait() -> None:
    def visit(size: int, number: int) -> tuple[float, float]:
        return swaying(number), 0.01

    waits = {wait_s: max(Run(cases=1).passes(visit, wait_s).values()) for wait_s in (0.6, 1.2)}
    assert waits == {0.6: 17, 1.2: 9}, "10 s"


@pytest.mark.parametrize(
    ("words", "expected_s"),
    [
        (("timing=quick",), 0.3),
        (("timing=default",), 0.6),
        (("timing=rigorous",), 1.0),
        (("timing=quick", "budget.case_s=0.3"), 0.1),
        (("timing=quick", "timing.pass_s=0"), 0.0),
    ],
)
def test_passes_are_apart_but_fit_into_the_time_of_a_case(
    words: tuple[str, ...], expected_s: float
) -> None:
    assert spacing_s(settings_of("backend=simulated", *words)) == pytest.approx(expected_s)


def test_a_row_tells_over_what_time_its_visits_are_spread_whatever_the_wall_clock_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(cases=1)
    (planned,) = run.cases
    clock_s = [0.0]
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    for begin_s, end_s in ((99.5, 100.0), (104.0, 104.5)):
        clock_s[0] = begin_s
        run.recorder.begin_visit(planned)
        clock_s[0] = end_s
        run.visit(planned, 1e-3, 0.01)
    (row,) = run.recorder.published.rows.values()
    assert row.visits_s == pytest.approx(5.0)


def test_all_rows_are_held_against_the_best_copy_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within a run, copies by a core took 5.49 to 38 GB/s on a busy machine."""
    run = Run(cases=3)
    assert not run.recorder.has_measured_limits
    run.conditions = replace(AROUND, cache_bytes=0, core_copy_gb_per_s=5.49)
    again = iter([38.0, None, 7.1])
    monkeypatch.setattr(conditions, "core_copy_gb_per_s", lambda _: next(again))
    reader: Any = SimpleNamespace()
    for planned in run.cases:
        run.visit(planned, 1e-9 * planned.case.message_bytes, 0.1)
        run.conditions = ConditionsReader.measure_limits_again(reader, run.conditions, reader, ())
    assert run.recorder.has_measured_limits
    run.recorder.renew_limits(run.cases, run.conditions)
    rows = run.recorder.published.rows.values()
    assert {row.limit_gb_per_s for row in rows} == {38.0}
    assert [row.efficiency for row in rows] == [pytest.approx(1 / 38.0)] * 3
    assert {row.visits for row in rows} == {1}


def test_a_world_that_breaks_keeps_the_earlier_visits_of_its_case() -> None:
    run = Run(cases=2)
    started = datetime.now(timezone.utc)
    visited, unvisited = run.cases
    for _ in range(5):
        run.visit(visited, 1e-3, 0.01)
    for planned in run.cases:
        run.recorder.break_off(planned, "rank 1 was killed", AROUND, started)
    rows = run.recorder.published.rows
    kept, lost = (rows[planned.case.case_id] for planned in (visited, unvisited))
    assert (kept.status, kept.stop_reason, kept.visits) == ("ok", "interrupted", 5)
    assert kept.median_s == pytest.approx(1e-3) and kept.reason == "rank 1 was killed"
    assert (lost.status, lost.reason, lost.median_s) == ("failed", "rank 1 was killed", None)


def test_a_case_that_is_refused_in_a_later_visit_keeps_its_visits() -> None:
    run = Run(cases=2)
    visited, _ = run.cases
    started = datetime.now(timezone.utc)
    for number in range(5):
        run.visit(visited, swaying(number, 0.3), 0.01)
    assert run.recorder.next_pass(run.cases) == [visited.order], "it needs more visits"
    for planned in run.cases:
        run.recorder.record(planned, Refused("out of memory at that moment"), AROUND, started)
    kept, skipped = (run.recorder.published.rows[planned.case.case_id] for planned in run.cases)
    assert (kept.status, kept.stop_reason, kept.visits) == ("ok", "interrupted", 5)
    assert "out of memory at that moment" in str(kept.reason)
    assert (skipped.status, skipped.reason) == ("skipped", "out of memory at that moment")
    assert run.recorder.next_pass(run.cases) == [], "this world does not try it again"
    assert run.recorder.end_visits(visited, AROUND)
    assert run.recorder.published.rows[visited.case.case_id].stop_reason == "interrupted"
    assert run.recorder.passes.left_out


def test_a_soak_in_which_the_world_breaks_has_failed() -> None:
    run = Run("timing=soak", cases=1)
    (planned,) = run.cases
    run.visit(planned, 1e-3, 0.01)
    run.recorder.break_off(planned, "rank 1 was killed", AROUND, datetime.now(timezone.utc))
    assert run.recorder.published.rows[planned.case.case_id].status == "failed"
