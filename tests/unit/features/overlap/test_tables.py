"""What is hidden and what is slower, from the times of an overlap's cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_cases import CASE

from commbench.features.overlap.tables import overlap_cells, overlap_results
from commbench.results.row import Row, row_of

Times = tuple[float, float, float]  # low, median, high


def timed_row(timed: str, times: Times, **changes: Any) -> Row:
    low_s, median_s, high_s = times
    overlap = None if timed == "communication" else "sleep"
    values = {
        "benchmark": "all_reduce",
        "run_id": "run",
        "status": "ok",
        "overlap": overlap,
        "timed": timed,
        "median_s": median_s,
        "ci_low_s": low_s,
        "ci_high_s": high_s,
    }
    return row_of(vars(CASE) | values | changes)


def rows(together: Times, beside: Times | None = (10.0, 10.0, 10.0)) -> list[Row]:
    """Of a communication of 8 s and a computation of 10 s."""
    chosen = [
        timed_row("communication", (7.0, 8.0, 9.0)),
        timed_row("compute", (10.0, 10.0, 10.0)),
        timed_row("together", together),
    ]
    return chosen if beside is None else [*chosen, timed_row("compute_beside", beside)]


def test_what_is_hidden_is_that_of_osu_with_the_interval_of_its_times() -> None:
    (result,) = overlap_results(rows((11.0, 12.0, 13.0)))
    assert result.hidden.value == 1 - 2 / 8
    assert (result.hidden.low, result.hidden.high) == (1 - 3 / 7, 1 - 1 / 9)


def test_nothing_hidden_is_0_and_not_less() -> None:
    (result,) = overlap_results(rows((20.0, 20.0, 20.0)))
    assert (result.hidden.value, result.hidden.low, result.hidden.high) == (0.0, 0.0, 0.0)


def test_both_slowdowns_are_times_beside_the_other_over_times_alone() -> None:
    (result,) = overlap_results(rows((16.0, 16.0, 16.0), beside=(12.0, 12.0, 15.0)))
    assert result.compute_slowdown is not None
    assert (result.compute_slowdown.value, result.compute_slowdown.high) == (1.2, 1.5)
    assert result.communication_slowdown.value == 2.0
    assert result.is_end_seen


@pytest.mark.parametrize("beside", [(10.0, 11.0, 12.0), None])
def test_an_operation_that_may_have_ended_during_the_computation_has_a_bound(
    beside: Times | None,
) -> None:
    (result,) = overlap_results(rows((11.0, 11.5, 12.5), beside))
    assert not result.is_end_seen
    assert overlap_cells([result])[0][3].startswith("<= ~1.44")
    assert (result.compute_slowdown is None) == (beside is None)


def test_without_a_time_of_one_case_there_is_no_result() -> None:
    complete = rows((11.0, 12.0, 13.0))
    for missing in range(3):
        assert overlap_results(complete[:missing] + complete[missing + 1 :]) == []
    failed = [*complete[:2], timed_row("together", (1.0, 1.0, 1.0), status="failed")]
    assert overlap_results(failed) == []


def test_runs_sizes_and_kinds_are_not_mixed() -> None:
    first = rows((11.0, 12.0, 13.0))
    matmul = [replace(row, overlap="matmul") for row in rows((18.0, 18.0, 18.0))[1:]]
    other_run = [replace(row, run_id="other") for row in first]
    larger = [replace(row, message_bytes=64) for row in first]
    results = overlap_results([*first, *matmul, *other_run, *larger])
    assert [(result.overlap, result.hidden.value) for result in results] == [
        ("sleep", 0.75),
        ("matmul", 0.0),
        ("sleep", 0.75),
        ("sleep", 0.75),
    ]


def test_the_cells_say_how_certain_they_are() -> None:
    (cells,) = overlap_cells(overlap_results(rows((11.0, 12.0, 13.0))))
    assert cells[0].startswith("all_reduce 1x2") and cells[2] == "~75.0 ±24%"


def test_operations_that_differ_in_a_variable_are_named_with_it() -> None:
    first = rows((11.0, 12.0, 13.0))
    other = [replace(row, in_place=False) for row in first]
    names = [cells[0] for cells in overlap_cells(overlap_results([*first, *other]))]
    assert "in_place False" in names[1]
