"""How numbers are shown: the unit of a column, and what is quoted of a benchmark."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.report.quantities import (
    ALGBW,
    BUSBW,
    COLLECTIVE_ALGBW,
    MEDIAN,
    MESSAGE_RATE,
    has_bandwidth,
    in_full,
    quoted,
    text_with_unit,
    value_text,
    width_text,
)


def row(**values: Any) -> dict[str, Any]:
    times = {"median_s": 74.1e-6, "ci_low_s": 65e-6, "ci_high_s": 83e-6}
    return case_row(**({"status": "ok", "pair": "0-1"} | times | values))


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [
        ([], "us"),
        ([1e-6, 1.0], "us"),
        ([20e-9], "us"),
        ([2e-9, 1e-6], "ns"),
        ([2e-9, 1e-3], "us"),
        ([0.2, 3.0], "ms"),
        ([300.0], "s"),
    ],
)
def test_a_column_has_one_unit_in_which_its_numbers_are_short(
    seconds: list[float], unit: str
) -> None:
    assert MEDIAN.unit(row(median_s=each) for each in seconds).name == unit


def test_small_rates_are_in_smaller_units() -> None:
    assert ALGBW.unit([row(algbw_gb_per_s=0.002)]).name == "MB/s"
    assert ALGBW.unit([row(algbw_gb_per_s=2e-6)]).name == "kB/s"
    assert ALGBW.unit([row(algbw_gb_per_s=1e-3), row(algbw_gb_per_s=200.0)]).name == "GB/s"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (MEDIAN,)),
        ({"window": 64}, (ALGBW,)),
        ({"window": 64, "pair": "0-2 1-3"}, (MESSAGE_RATE, ALGBW)),
        ({"benchmark": "copy_d2h", "pair": None, "busbw_gb_per_s": 1.0}, (MEDIAN, BUSBW)),
        ({"pair": None, "busbw_gb_per_s": 1.0}, (MEDIAN, BUSBW)),
        ({"pair": None}, (MEDIAN,)),
    ],
)
def test_what_is_quoted_depends_on_what_is_sent(values: dict[str, Any], expected: Any) -> None:
    assert quoted([row(**values)]) == expected
    assert has_bandwidth(row(**values)) is (expected != (MEDIAN,))


def test_algbw_stands_beside_busbw_where_they_differ() -> None:
    factors = [row(pair=None, algbw_gb_per_s=1.0, busbw_gb_per_s=busbw) for busbw in (1.0, 1.75)]
    assert in_full(factors[:1]) == (MEDIAN, BUSBW)
    assert in_full(factors) == (MEDIAN, COLLECTIVE_ALGBW, BUSBW)
    assert in_full([row(window=64)]) == (ALGBW,)


def test_a_number_is_written_with_its_certainty_and_width() -> None:
    unit = MEDIAN.unit([row()])
    assert (value_text([row()], MEDIAN, unit), width_text([row()], MEDIAN)) == ("~74.1", "±12%")
    assert text_with_unit(row(), MEDIAN) == "~74.1 us ±12%"
    assert text_with_unit(row(ci_low_s=None, repetitions=2), MEDIAN) == "?74.1 us (n=2)"


def test_numbers_beside_one_another_have_one_unit() -> None:
    both = [row(window=64, algbw_gb_per_s=rate) for rate in (0.102, 0.000392)]
    texts = [text_with_unit(each, ALGBW, both) for each in both]
    assert [text.split()[:2] for text in texts] == [["~102", "MB/s"], ["~0.392", "MB/s"]]


def test_without_a_number_stands_the_status_or_a_dash() -> None:
    failed = row(status="failed", median_s=None)
    unit = MEDIAN.unit([failed])
    assert (value_text([failed], MEDIAN, unit), width_text([failed], MEDIAN)) == ("failed", "")
    assert value_text([failed], ALGBW, ALGBW.unit([failed])) == "-"
    assert text_with_unit(row(), BUSBW) == "-"
