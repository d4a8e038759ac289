"""Soaks that were interrupted, among what made the numbers of a run uncertain."""

from __future__ import annotations

from typing import Any

from sample_cases import case_row

from commbench.features.streams.gaps import gaps
from commbench.report.showing import disturbances_text
from commbench.results.row import Row


def soak(unmeasured_s: float, **more: Any) -> Row:
    known = {"status": "ok", "engine": "python", "benchmark": "all_reduce", "message_bytes": 8}
    return case_row(**known | more, visits_s=60.0, unmeasured_s=unmeasured_s)


def test_a_soak_with_holes_is_told() -> None:
    holes = "all_reduce 1x2 8 B: 700 ms passed between its repetitions"
    assert list(gaps([soak(0.7)])) == [holes]
    assert list(gaps([soak(0.5)])) == []
    assert disturbances_text([], [soak(0.7)]) == f"disturbances: {holes}"
    assert disturbances_text([], [soak(0.5)]) == ""


def test_many_soaks_with_holes_are_counted() -> None:
    rows = [soak(0.7 + at, message_bytes=8 * at) for at in range(1, 5)]
    assert list(gaps(rows)) == ["4 soaks: 1.70 s to 4.70 s passed between the repetitions of each"]
