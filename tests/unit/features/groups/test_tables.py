"""Gain and slowdown of operations at once, from the times of each alone and of all at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sample_cases import CASE

from commbench.features.groups.tables import group_gains
from commbench.results.row import Row, row_of

FIRST = "all_reduce@tp2"
SECOND = "all_gather@dp2"


def group_row(groups: str, low_s: float, high_s: float, **changes: Any) -> Row:
    values = {
        "benchmark": "concurrent",
        "run_id": "run",
        "status": "ok",
        "groups": groups,
        "median_s": (low_s + high_s) / 2,
        "ci_low_s": low_s,
        "ci_high_s": high_s,
        "p99_s": None,
    }
    return row_of(vars(CASE) | values | changes)


ROWS = [
    group_row(FIRST, 4.0, 4.0),
    group_row(SECOND, 2.0, 2.0),
    group_row(f"{FIRST} + {SECOND}", 4.0, 6.0),
    group_row(f"[{FIRST}] + {SECOND}", 4.0, 6.0),
    group_row(f"{FIRST} + [{SECOND}]", 3.0, 5.0),
]


def test_the_gain_is_the_sum_of_the_times_alone_over_that_of_all() -> None:
    (gain,) = [each.gain for each in group_gains(ROWS) if each.gain is not None]
    assert (gain.low, gain.value, gain.high) == (1.0, 1.2, 1.5)


def test_each_operation_has_its_slowdown_beside_the_others() -> None:
    slowdowns = {each.operation: each for each in group_gains(ROWS) if each.slowdown is not None}
    assert set(slowdowns) == {FIRST, SECOND}
    second = slowdowns[SECOND]
    assert second.beside == FIRST and second.slowdown is not None
    assert (second.slowdown.low, second.slowdown.value, second.slowdown.high) == (1.5, 2.0, 2.5)


def test_a_copy_and_a_collective_each_have_what_the_other_costs_them() -> None:
    copy = "copy_d2h@world=64MiB"
    collective = "all_gather@world"
    rows = [
        group_row(collective, 2.0, 2.0),
        group_row(copy, 8.0, 8.0),
        group_row(f"{collective} + {copy}", 10.0, 10.0),
        group_row(f"[{collective}] + {copy}", 3.0, 3.0),
        group_row(f"{collective} + [{copy}]", 10.0, 10.0),
    ]
    gains = {gain.operation: gain for gain in group_gains(rows)}
    ratios = {name: gain.slowdown and gain.slowdown.value for name, gain in gains.items()}
    assert ratios == {collective: 1.5, copy: 1.25, f"{collective} + {copy}": None}
    together = gains[f"{collective} + {copy}"].gain
    assert together is not None and together.value == 1.0


def test_a_latency_under_load_has_the_slowdown_of_its_99th_percentile() -> None:
    load = "p2p_latency@0-1 beside all_reduce@2-3"
    rows = [
        group_row("p2p_latency@0-1", 1.0, 1.0, p99_s=2.0),
        group_row(load, 3.0, 3.0, p99_s=9.0),
    ]
    (gain,) = group_gains(rows)
    assert (gain.slowdown and gain.slowdown.value, gain.p99_slowdown) == (3.0, 4.5)
    without = [replace(row, p99_s=None) for row in rows]
    assert [each.p99_slowdown for each in group_gains(without)] == [None]


def test_without_the_time_alone_there_is_nothing() -> None:
    assert group_gains(ROWS[2:]) == []
    other_run = [replace(row, run_id="other") for row in ROWS[:2]]
    assert group_gains([*ROWS[2:], *other_run]) == []


def test_the_cells_name_operations_and_their_slowdown() -> None:
    cells = [gain.cells() for gain in group_gains(ROWS)]
    assert any(each[0] == FIRST for each in cells)
    assert any("~2.00 ±25%" in each for each in cells)
