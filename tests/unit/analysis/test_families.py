"""Families of cases: what is a line over size, and what is not merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sample_cases import case_row
from size_rows import rows_of

import commbench
from commbench.analysis.combined import combine_runs
from commbench.analysis.families import answerable, families, ignored, key
from commbench.results.load import rows_of_frame
from commbench.results.row import Row
from commbench.stats.interval import Interval

FIXED = (
    "timing=fixed",
    "timing.repetitions=40",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
)


def test_a_row_of_three_launches_is_three_and_keeps_its_own_median_and_interval() -> None:
    """timing=rigorous: six visits in each of three fresh worlds."""
    visits = [1.0, 1.2, 2.0, 2.2, 3.0, 3.2]
    launches = [1, 1, 2, 2, 3, 3]
    case = {"benchmark": "all_reduce", "status": "ok", "run_id": "r", "message_bytes": 8}
    numbers = {"median_s": 2.1, "ci_low_s": 2.1, "ci_high_s": 2.1, "interval_level": 0.99}
    columns = {"visit_medians_s": visits, "visit_launches": launches, "interval_of": "launches"}
    frame = pd.DataFrame([case | numbers | columns])
    rows = rows_of(frame)
    for own in (rows, combine_runs(rows).rows):
        (time,) = families(own)[0].times
        assert (time.launches_s, time.run_id) == (pytest.approx((1.1, 2.1, 3.1)), "r")
        assert time.median == Interval(2.1, 2.1, 2.1, 0.99, 3, "launches")
    resumed = frame.assign(visit_launches=[[1, 1, 1, 2, 2, 2]])
    # two starts of one run are too few to go by
    assert families(rows_of(resumed))[0].times[0].launches_s == (2.1,)


def row(**more: Any) -> Row:
    """A measured case; the interval is -+ 1 % of the median unless told otherwise."""
    names = {"benchmark": "all_reduce", "status": "ok", "label": "", "run_id": "r"}
    median_s = more.get("median_s")
    ends = {} if median_s is None else {"ci_low_s": 0.99 * median_s, "ci_high_s": 1.01 * median_s}
    return case_row(**names | {"world_size": 2} | ends | more)


def test_several_runs_give_their_median_and_the_widest_interval() -> None:
    runs = [row(run_id=f"{n}", median_s=t) for n, t in enumerate([1.0, 3, 2])]
    (family,) = families(runs)
    assert (family.median_s.tolist(), family.low_s.tolist(), family.high_s.tolist()) == (
        [2.0],
        [0.99],
        [1.01 * 3],
    )
    assert (family.launches, family.times[0].launches_s) == (3, (1.0, 3.0, 2.0))
    labelled = [replace(run, label=label) for run, label in zip(runs, ("a", "", None), strict=True)]
    # labels are kept apart
    assert sorted(family.launches for family in families(labelled)) == [1, 2]


def test_one_rank_and_simulated_cases_answer_nothing_beside_real_ones() -> None:
    rows = [row(engine="virtual"), row(engine="python"), row(world_size=1)]
    assert [each.engine for each in answerable(rows)] == ["python"]
    assert len(answerable(rows[:1])) == 1


@pytest.mark.parametrize(
    "name", ["library", "hosts", "label", "bind", "backend_options", "streams"]
)
def test_what_differs_is_not_merged(name: str) -> None:
    """Open MPI's 177 ns and MPICH's 1.02 us must not become 599 ns, a time that no library has."""
    values = {"backend_options": [{"threads": "multiple"}, {}], "streams": [1, 36]}.get(
        name, ["a", "b"]
    )
    runs = [
        row(run_id=f"{n}", median_s=t, **{name: values[n]}) for n, t in enumerate([177e-9, 1.02e-6])
    ]
    assert sorted(family.median_s[0] for family in families(runs)) == [
        177e-9,
        1.02e-6,
    ]


def test_a_run_without_an_interval_is_inside_the_others() -> None:
    unknown = {"ci_low_s": None, "ci_high_s": None}
    runs = [row(median_s=2.0), row(median_s=5.0, **unknown), row(median_s=1.0, **unknown)]
    (family,) = families(runs)
    assert (family.low_s[0], family.high_s[0]) == (1.0, 5.0)
    (alone,) = families(runs[1:])
    assert np.isnan([alone.low_s[0], alone.high_s[0]]).all()


def test_what_can_not_be_used_is_counted_by_its_reason() -> None:
    rows = [
        row(median_s=1.0),
        row(median_s=float("nan")),
        row(median_s=0.0),
        row(median_s=float("inf")),
    ]
    rows += [row(status=status) for status in ("skipped", "skipped", "invalid")]
    assert ignored(rows) == {"invalid": 1, "ok without a time": 3, "skipped": 2}
    assert [family.launches for family in families(rows)] == [1]


def test_an_operation_without_a_message_has_no_family_and_is_not_called_bad() -> None:
    barrier = [row(benchmark="barrier", message_bytes=0, median_s=1e-6)]
    assert (families(barrier), ignored(barrier)) == ([], {})


def test_another_environment_is_another_family() -> None:
    rows = [
        row(median_s=1.0),
        row(median_s=2.0, env={"A": "1"}),
        row(median_s=3.0, message_bytes=16),
    ]
    assert sorted(family.median_s.tolist() for family in families(rows)) == [
        [1.0, 3.0],
        [2.0],
    ]


def test_a_shrinking_window_stays_in_its_family() -> None:
    sizes = {8: (1, 16, 64), 1 << 23: (1, 16, 32), 1 << 25: (1, 8), 1 << 28: (1,)}
    rows = [
        row(message_bytes=size, window=window, median_s=window + 0.5)
        for size, windows in sizes.items()
        for window in windows
    ]
    medians = {family.variables.window: family.median_s.tolist() for family in families(rows)}
    assert medians == {1: [1.5] * 4, 16: [16.5, 16.5, 8.5, 1.5], 64: [64.5, 32.5, 8.5, 1.5]}


def test_the_rows_order_does_not_matter() -> None:
    rows = [
        row(backend=name, message_bytes=size, median_s=size * 1.5)
        for name in "ba"
        for size in (32, 8, 16)
    ]
    by_order = [
        [(key(family.variables), family.sizes.tolist()) for family in families(order)]
        for order in (rows, rows[::-1])
    ]
    assert by_order[0] == by_order[1]
    assert [family.variables.backend for family in families(rows)] == ["a", "b"]


def test_the_tool_s_own_windows_shrink_into_one_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commbench.measure.plan.WINDOW_CAP_BYTES", 2**20)
    words = (
        "benchmark=p2p_bandwidth",
        "sizes=[8,1KiB,64KiB]",
        "window=[4,64]",
        *FIXED,
        "timing.repetitions=6",
    )
    folder = commbench.run("backend=simulated", "writer=parquet", f"output={tmp_path}", *words)
    cases = commbench.load(folder)
    assert set(cases.window) == {4, 16, 64}
    found = families(rows_of_frame(cases))
    assert [family.sizes.tolist() for family in found] == [[8, 1024, 1 << 16]] * 2
