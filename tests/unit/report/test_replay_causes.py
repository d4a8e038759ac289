"""Causes of a replayed job's time: named only where their interval excludes zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commbench.report.replay_causes import (
    Cause,
    ReplayTimes,
    Seconds,
    causes,
    measured_seconds,
    replay_times,
)
from commbench.workloads.generators import generate

LAYERS = 3
WORKLOAD = generate("fsdp", {"ranks": "2", "params": "3e6", "layers": str(LAYERS)})


def row(text: str, median_s: float, gaps: str | None = None, **more: Any) -> dict[str, Any]:
    width_s = 0.02 * median_s
    return {
        "workload": text,
        "gaps": gaps,
        "late": None,
        "status": "ok",
        "median_s": median_s,
        "ci_low_s": median_s - width_s,
        "ci_high_s": median_s + width_s,
        "efficiency": 0.5,
        **more,
    }


def rows(sequence_s: float, **by_gaps: float) -> list[dict[str, Any]]:
    """An all_gather takes 1 ms, a reduce_scatter 2 ms."""
    return [
        row("job@0 #0 all_gather", 1e-3),
        row("job@0 #1 reduce_scatter", 2e-3),
        row("job@0", sequence_s, "none"),
        *(row("job@0", seconds, gaps) for gaps, seconds in by_gaps.items()),
    ]


def named(found: list[Cause]) -> set[str]:
    return {cause.name for cause in found if cause.loss is not None and cause.loss.excludes_zero}


def test_operations_one_after_another_are_counted_as_often_as_a_step_has_them() -> None:
    times = replay_times(rows(12e-3), WORKLOAD, 2)
    assert times.alone_sum is not None and times.limit_sum is not None
    # two all_gathers and a reduce_scatter a layer
    assert times.alone_sum.value == pytest.approx(LAYERS * 4e-3)
    assert times.limit_sum.value == pytest.approx(LAYERS * 2e-3)


@pytest.mark.parametrize(
    ("sequence_s", "by_gaps", "waiting", "expected"),
    [
        (12e-3, {"sleep": 0.03, "matmul": 0.03}, None, {"link"}),
        (20e-3, {"sleep": 0.03, "matmul": 0.03}, None, {"link", "contention"}),
        (12e-3, {"sleep": 0.03, "matmul": 0.05}, None, {"link", "interference"}),
        (12e-3, {}, Seconds(3e-3, 1e-3, 5e-3), {"link", "waiting"}),
        (12e-3, {}, Seconds(3e-3, 0.0, 5e-3), {"link"}),
    ],
)
def test_a_planted_cause_is_named_and_no_other(
    sequence_s: float, by_gaps: dict[str, float], waiting: Seconds | None, expected: set[str]
) -> None:
    times = replay_times(rows(sequence_s, **by_gaps), WORKLOAD, 2)
    assert named(causes(times, waiting, None)) == expected


def test_the_rest_is_what_the_job_took_longer_than_its_replay() -> None:
    times = replay_times(rows(12e-3), WORKLOAD, 2)
    (rest,) = [cause for cause in causes(times, None, 30e-3) if cause.name == "rest"]
    assert rest.loss is not None and rest.loss.value == pytest.approx(18e-3)
    (faster,) = [cause for cause in causes(times, None, 6e-3) if cause.name == "rest"]
    assert "other machines" in str(faster)


def test_what_was_not_measured_is_said_with_what_it_needs() -> None:
    unmeasured = [{**row("job@0 #0 all_gather", 1e-3), "status": "skipped", "median_s": None}]
    found = causes(replay_times(unmeasured, WORKLOAD, 2), None, None)
    assert all(cause.loss is None and cause.missing for cause in found)
    assert all("not known" in str(cause) for cause in found)


def test_a_median_without_an_interval_decides_nothing() -> None:
    unsure = measured_seconds(row("job@0", 1e-3, ci_low_s=None, ci_high_s=None))
    assert unsure is not None and not (unsure - Seconds(5.0, 5.0, 5.0)).excludes_zero


def test_null_jobs_name_no_cause_in_95_percent() -> None:
    """Medians vary by 2 % around the same truth, and the intervals hold it."""
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        draw = 1 + 0.01 * random.standard_normal(5)
        measured = [
            row("job@0 #0 all_gather", 1e-3 * draw[0], efficiency=None),
            row("job@0 #1 reduce_scatter", 2e-3 * draw[1], efficiency=None),
            row("job@0", 12e-3 * draw[2], "none"),
            row("job@0", 0.03 * draw[3], "sleep"),
            row("job@0", 0.03 * draw[4], "matmul"),
        ]
        wrong += bool(named(causes(replay_times(measured, WORKLOAD, 2), None, None)))
    assert wrong <= 20


def test_a_negative_time_is_written_with_its_sign() -> None:
    assert str(Seconds(-2e-3, -3e-3, -1e-3)) == "-2.00 ms (-3.00 ms .. -1.00 ms)"


def test_calls_of_the_busiest_rank_count() -> None:
    second = Seconds(1.0, 1.0, 1.0)
    times = ReplayTimes({}, {0: second, 1: second}, {}, {0: {0: 1.0}, 1: {0: 2.0, 1: 1.0}})
    assert times.alone_sum is not None and times.alone_sum.value == 3.0
    assert times.limit_sum is None
