"""Causes of a replayed job's time: named only where their interval excludes zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from sample_cases import case_row

from commbench.measure.visits import Visit, estimate
from commbench.results.intervals import interval_of
from commbench.results.row import Row
from commbench.stats.interval import Interval
from commbench_replay.causes import Cause, Waiting, causes
from commbench_replay.generators import generate
from commbench_replay.replay_times import ReplayTimes, replay_times
from commbench_replay.scaling import scaled
from commbench_replay.workload import RankOrder, Workload, WorkloadCall, WorkloadOperation

LAYERS = 3
JOBS = 400
VISITS = 6
PLANTED_CAUSES = {
    "none": set(),
    "matmul": {"interference"},
    "sequence": {"contention"},
    "late": {"waiting for rank 1"},
}
WORKLOAD = generate("fsdp", {"ranks": "2", "params": "3e6", "layers": str(LAYERS)})
PART = scaled(WORKLOAD, 2)


def row(text: str, median_s: float, gaps: str | None = None, **more: Any) -> Row:
    width_s = 0.02 * median_s
    ends = {"ci_low_s": median_s - width_s, "ci_high_s": median_s + width_s}
    return case_row(workload=text, gaps=gaps, status="ok", median_s=median_s, **ends | more)


def rows(sequence_s: float, **by_gaps: float) -> list[Row]:
    """An all_gather takes 1 ms, a reduce_scatter 2 ms."""
    return [
        row("job@0 #0 all_gather", 1e-3),
        row("job@0 #1 reduce_scatter", 2e-3),
        row("job@0", sequence_s, "none"),
        *(row("job@0", seconds, gaps) for gaps, seconds in by_gaps.items()),
    ]


def named(found: list[Cause]) -> set[str]:
    return {cause.name for cause in found if cause.is_named}


def test_operations_one_after_another_are_counted_as_often_as_a_step_has_them() -> None:
    times = replay_times(rows(12e-3), PART)
    assert times.alone_sum is not None
    # two all_gathers and a reduce_scatter a layer
    assert times.alone_sum.value == pytest.approx(LAYERS * 4e-3)


@pytest.mark.parametrize(
    ("sequence_s", "by_gaps", "waiting", "expected"),
    [
        (12e-3, {"sleep": 0.03, "matmul": 0.03}, None, set()),
        (20e-3, {"sleep": 0.03, "matmul": 0.03}, None, {"contention"}),
        (12e-3, {"sleep": 0.03, "matmul": 0.05}, None, {"interference"}),
        (12e-3, {}, Waiting(Interval(3e-3, 1e-3, 5e-3), False, None), {"waiting"}),
        (12e-3, {}, Waiting(Interval(3e-3, 0.0, 5e-3), False, None), set()),
    ],
)
def test_a_planted_cause_is_named_and_no_other(
    sequence_s: float, by_gaps: dict[str, float], waiting: Waiting | None, expected: set[str]
) -> None:
    times = replay_times(rows(sequence_s, **by_gaps), PART)
    assert named(causes(times, waiting)) == expected


def test_a_difference_below_zero_is_no_loss_and_says_what_it_means() -> None:
    times = replay_times(rows(9e-3, sleep=0.03, matmul=0.027), PART)
    found = {cause.name: cause for cause in causes(times)}
    assert not named(list(found.values()))
    assert "contention: no loss, -3.00 ms" in str(found["contention"])
    assert "interference: no loss, -3.00 ms" in str(found["interference"])


def test_what_was_not_measured_is_said_with_what_it_needs() -> None:
    unmeasured = [case_row(workload="job@0 #0 all_gather", status="skipped")]
    found = causes(replay_times(unmeasured, PART))
    assert all(cause.loss is None and cause.missing for cause in found)
    assert all("not known" in str(cause) for cause in found)


def test_a_median_without_an_interval_decides_nothing() -> None:
    unsure = interval_of(row("job@0", 1e-3, ci_low_s=None, ci_high_s=None))
    assert unsure is not None
    longer = unsure - Interval(5.0, 5.0, 5.0)
    assert longer.low < 0 < longer.high and not longer.is_known


def visited(text: str, truth_s: float, random: Generator, gaps: str | None = None) -> Row:
    """A row as a run makes it, of visits that differ by 3 % around the truth."""
    visits = [Visit(0, value, 100) for value in truth_s * random.lognormal(0, 0.03, VISITS)]
    seen = estimate(visits)
    return row(text, seen.value, gaps, ci_low_s=seen.low, ci_high_s=seen.high)


@pytest.mark.parametrize("planted", ["none", "matmul", "sequence", "late"])
def test_null_jobs_name_no_cause_in_95_percent_and_planted_ones_name_theirs(planted: str) -> None:
    random = np.random.default_rng(1)
    right = 0
    for _ in range(JOBS):
        measured = [
            visited("job@0 #0 all_gather", 1e-3, random),
            visited("job@0 #1 reduce_scatter", 2e-3, random),
            visited("job@0", 16e-3 if planted == "sequence" else 12e-3, random, "none"),
            visited("job@0", 0.03, random, "sleep"),
            visited("job@0", 0.036 if planted == "matmul" else 0.03, random, "matmul"),
        ]
        late = visited("job@0", 14.4e-3 if planted == "late" else 12e-3, random, "none")
        measured.append(replace(late, late="1:400us"))
        names = named(causes(replay_times(measured, PART)))
        right += names == PLANTED_CAUSES[planted]
    assert right >= 0.95 * JOBS


def test_calls_of_the_busiest_rank_count() -> None:
    second = Interval(1.0, 1.0, 1.0)
    barrier, reduced = (WorkloadOperation(0, name, "int8", (1,), (1,)) for name in ("barrier", "x"))
    calls = [(WorkloadCall(0),), (WorkloadCall(0), WorkloadCall(0), WorkloadCall(1))]
    orders = tuple(RankOrder((rank,), of_rank) for rank, of_rank in enumerate(calls))
    part = scaled(Workload(2, ((0, 1),), (barrier, reduced), orders), 2)
    times = ReplayTimes(part, {}, {}, {0: second, 1: second})
    assert times.alone_sum is not None and times.alone_sum.value == 3.0
