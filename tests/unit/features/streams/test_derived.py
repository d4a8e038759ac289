"""Soaks of streams over several launches."""

from __future__ import annotations

import pytest
from sample_cases import measured_row

from commbench.features.streams.derived import combined_soaks
from commbench.report.summary import Results, Summary
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


def test_what_only_streams_have_is_the_median_of_the_launches_that_have_it() -> None:
    rows = [soak("a", 1.0, 0.2), soak("b", 3.0, None), soak("c", 2.0, 0.4)]
    (row,) = combined_soaks(Summary(Results(rows, (), {}, ())))
    assert (row.runs, row.end_gb_per_s) == (3, 2.0)
    assert row.full_speed_s == pytest.approx(0.3)
    assert row.least_gb_per_s is None
