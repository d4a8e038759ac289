"""Which rows are soaks; those of streams over several launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_cases import measured_row

import commbench
from commbench.features.streams.derived import combined_soaks, read_intervals
from commbench.report.summary import Results, Summary, read_results
from commbench.results.row import Row


def soak(run_id: str, end_gb_per_s: float, full_speed_s: float | None) -> Row:
    return measured_row(
        "stream",
        run_id=run_id,
        case_id="stream",
        status="ok",
        timing="soak",
        end_gb_per_s=end_gb_per_s,
        full_speed_s=full_speed_s,
    )


def test_a_soak_by_any_name_is_no_ordinary_case(tmp_path: Path) -> None:
    """`timing` of a row is a name that people give."""
    length = ("timing.duration_s=0.05", "timing.interval_s=0.01")
    for timing in (
        ("timing=quick",),
        tuple(f"+{word}" for word in length),
        ("timing=soak", "timing.name=night", *length),
        ("timing=soak", *length),
    ):
        shared = ("backend=simulated", "benchmark=[p2p_latency]", "layout=1x2", "sizes=[8]")
        commbench.run(*shared, *timing, "writer=[parquet]", f"output={tmp_path}")
    summary = Summary(read_results([tmp_path]))
    assert [row.timing for row in summary.combined.rows] == ["quick"]
    assert [row.timing for row in summary.soaks.rows] == ["default", "night", "soak"]
    assert {row.duration_s for row in combined_soaks(summary)} == {0.05}
    assert read_intervals(summary)["case_id"].nunique() == 3


def test_a_soak_of_an_earlier_file_has_the_name() -> None:
    assert soak("a", 1.0, None).duration_s is None and soak("a", 1.0, None).is_soak


def test_what_only_streams_have_is_the_median_of_the_launches_that_have_it() -> None:
    rows = [soak("a", 1.0, 0.2), soak("b", 3.0, None), soak("c", 2.0, 0.4)]
    (row,) = combined_soaks(Summary(Results(rows, (), {}, ())))
    assert (row.runs, row.end_gb_per_s) == (3, 2.0)
    assert row.full_speed_s == pytest.approx(0.3)
    assert row.least_gb_per_s is None
