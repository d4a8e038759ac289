"""A gate passes on what was measured, and on nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.config.settings import parse_expectation
from commbench.measure.expectations import Verdict, verdict_on


def row(size: int, status: str = "ok", **more: Any) -> dict[str, Any]:
    values = case_row(benchmark="all_reduce", layout="1x2", message_bytes=size, status=status)
    return {**values, "median_s": 1e-6 if status == "ok" else None, "reason": "no memory", **more}


def verdict(text: str, *rows: dict[str, Any]) -> Verdict:
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
    rows: list[dict[str, Any]], missing: str, passes: bool
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
