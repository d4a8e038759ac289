"""A gate passes on what was measured, and on nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.config.expectations import parse_expectation
from commbench.measure.expectations import ExpectationResult, verdict_on
from commbench.results.row import Row


def row(size: int, status: str = "ok", **more: Any) -> Row:
    values = {"benchmark": "all_reduce", "layout": "1x2", "message_bytes": size}
    result = {"median_s": 1e-6 if status == "ok" else None, "reason": "no memory"}
    return case_row(**values | {"status": status} | result | more)


def verdict(text: str, *rows: Row) -> ExpectationResult:
    return verdict_on(parse_expectation(text), rows)


def test_each_case_meets_it_or_misses_it_or_was_not_measured() -> None:
    got = verdict("median_s<1e-5", row(8), row(16, median_s=1.0), row(32, "skipped"))
    assert got.met == 1
    assert got.missed == ("expect median_s<1e-5: all_reduce 1x2 16 B has 1",)
    assert got.not_measured == ("expect median_s<1e-5: all_reduce 1x2 32 B is skipped: no memory",)
    assert got.summary() == "expect: 1 of 3 met, 1 missed, 1 not measured"


@pytest.mark.parametrize(
    ("rows", "missing", "passes"),
    [
        ([row(8)], "fail", True),
        ([row(8), row(16, "skipped")], "fail", False),
        ([row(8), row(16, "skipped")], "allow", True),
        ([row(8, "failed")], "fail", False),
        ([row(8, median_s=1.0)], "allow", False),
        ([], "fail", False),
        ([], "allow", True),
    ],
)
def test_what_was_not_measured_is_not_met_unless_that_is_allowed(
    rows: list[Row], missing: str, passes: bool
) -> None:
    assert verdict("median_s<1e-5", *rows).passes(missing) is passes


def test_a_column_that_an_operation_does_not_have_counts_where_no_case_has_it() -> None:
    barrier = row(0, benchmark="barrier", busbw_gb_per_s=None)
    rate = row(8, busbw_gb_per_s=5.0)
    assert verdict("busbw_gb_per_s>1", barrier, rate).summary() == "expect: 1 of 1 met"
    got = verdict("busbw_gb_per_s>1", barrier)
    assert got.not_measured == ("expect busbw_gb_per_s>1: no measured case has busbw_gb_per_s",)


def test_other_benchmarks_do_not_count() -> None:
    other = row(8, "skipped", benchmark="broadcast")
    assert verdict("all_reduce:median_s<1", other, row(8)).summary() == "expect: 1 of 1 met"


def test_several_expectations_are_one_verdict() -> None:
    both = verdict("median_s<1e-5", row(8)) + verdict("median_s>1e-5", row(8))
    assert both.summary() == "expect: 1 of 2 met, 1 missed"


def test_a_bound_that_is_missed_is_one_line_with_the_first_cases() -> None:
    rows = [row(8 * size, median_s=1.0) for size in range(1, 6)]
    got = verdict("median_s<1e-5", *rows, row(80))
    assert got.missed == (
        "expect median_s<1e-5: all_reduce 1x2 8 B has 1, all_reduce 1x2 16 B has 1,"
        " all_reduce 1x2 24 B has 1, and 2 more",
    )
    assert got.summary() == "expect: 1 of 6 met, 5 missed"


@pytest.mark.parametrize(
    ("text", "cases"),
    [
        ("median_s<1", 4),
        ("1x2:median_s<1", 3),
        ("16..32B:median_s<1", 3),
        ("all_reduce:1x2:16..32:median_s<1", 2),
        ("1x4:8..8:median_s<1", 0),
    ],
)
def test_a_bound_holds_for_its_layout_and_sizes_only(text: str, cases: int) -> None:
    got = verdict(text, row(8), row(16), row(32), row(32, layout="1x4"))
    assert got.met == cases and bool(got.not_measured) == (cases == 0)


@pytest.mark.parametrize(
    ("text", "by_median", "by_interval"),
    [
        ("median_s<=1e-6", True, False),
        ("median_s<=2e-6", True, True),
        ("median_s>=1e-6", True, False),
        ("busbw_gb_per_s>=10", True, False),
        ("busbw_gb_per_s>=5", True, True),
        ("busbw_gb_per_s<=20", True, True),
    ],
)
def test_by_the_interval_both_of_its_ends_must_meet_the_bound(
    text: str, by_median: bool, by_interval: bool
) -> None:
    """1 us, 0.5 to 2 us; at these times the rate of 10 GB/s is 20 to 5 GB/s."""
    case = row(8, busbw_gb_per_s=10.0, ci_low_s=0.5e-6, ci_high_s=2e-6)
    expected = parse_expectation(text)
    assert verdict_on(expected, [case]).passes("fail") is by_median
    assert verdict_on(expected, [case], "interval").passes("fail") is by_interval


def test_a_case_without_an_interval_is_not_decided_by_it() -> None:
    got = verdict_on(parse_expectation("median_s<1"), [row(8)], "interval")
    assert got.not_measured == ("expect median_s<1: all_reduce 1x2 8 B has no interval",)
