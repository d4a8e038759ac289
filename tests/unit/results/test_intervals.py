"""The numbers of a row as intervals: of the time, and of rates, which are its inverse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from sample_cases import case_row

from commbench.results.intervals import interval_note, interval_of, known_interval, marks_note
from commbench.results.load import rows_of_table
from commbench.results.row import Row
from commbench.stats.interval import Interval

VISITS = {"interval_of": "visits", "visits": 3, "interval_level": 0.75}


def row(**values: Any) -> Row:
    times = {"median_s": 2.0, "ci_low_s": 1.0, "ci_high_s": 4.0, "algbw_gb_per_s": 10.0}
    return case_row(**({"status": "ok"} | times | VISITS | values))


def test_a_rate_is_low_where_the_time_is_long() -> None:
    assert interval_of(row()) == Interval(2.0, 1.0, 4.0, 0.75, 3, "visits")
    rate = interval_of(row(), "algbw_gb_per_s")
    assert rate == Interval(10.0, 5.0, 20.0, 0.75, 3, "visits")


@pytest.mark.parametrize(
    ("changed", "n", "of"),
    [
        (
            {
                "interval_of": "launches",
                "visit_launches": [1, 1, 2, 2, 5],
                "visit_medians_s": [2.0] * 5,
            },
            3,
            "launches",
        ),
        ({"interval_of": "repetitions", "repetitions": 30}, 30, "repetitions"),
    ],
)
def test_it_knows_what_its_values_are(changed: dict[str, Any], n: int, of: str) -> None:
    interval = interval_of(row(**changed))
    assert interval is not None and (interval.n, interval.of) == (n, of)


def test_a_table_of_few_columns_is_read() -> None:
    few = {"status": "ok", "median_s": 1.0, "ci_low_s": 1.0, "ci_high_s": 1.0}
    for of in ("visits", "launches", None):
        (read,) = rows_of_table(pa.Table.from_pylist([few | {"interval_of": of}]))
        interval = interval_of(read)
        assert interval is not None and interval.level == 0.95


def test_without_a_value_there_is_none_and_without_ends_it_is_unknown() -> None:
    assert interval_of(row(status="failed")) is None
    assert interval_of(row(median_s=None)) is None
    unknown = interval_of(row(ci_low_s=None))
    assert unknown is not None and not unknown.is_known
    assert known_interval(row(ci_low_s=None)) is None and known_interval(row(median_s=0.0)) is None


def test_marks_are_explained_where_they_stand() -> None:
    plain = Interval(1.0, 0.98, 1.02)
    vague = Interval(1.0, 0.9, 1.1)
    assert marks_note([plain]) == ""
    assert marks_note([plain, vague]) == "~: over ±5 %"
    assert marks_note([vague, Interval(1.0)]) == "~: over ±5 %; ?: no interval"
    wide = Interval(1.0, 0.1, 1.1)
    assert marks_note([wide, Interval(1.0)]) == "?: over ±30 % or no interval"


def test_a_number_of_ranks_that_waited_for_a_core_is_never_plain() -> None:
    narrow = {"ci_low_s": 1.99, "ci_high_s": 2.01}
    calm = interval_of(row(**narrow))
    waited = interval_of(row(**narrow, warnings=["waited"]))
    assert calm is not None and waited is not None
    assert calm.certainty == ""
    assert waited.certainty == "~" and waited.width_text() == calm.width_text()
    assert (waited + calm).certainty == "~", "nor is what is computed from it"
    assert marks_note([waited]) == "~: waited"
    vague = replace(waited, low=1.8)
    assert marks_note([calm, waited, vague]) == "~: waited or over ±5 %"


def test_the_note_names_the_level_that_all_reach() -> None:
    three = Interval(1.0, 0.9, 1.1, 0.75, 3, "visits")
    seven = Interval(1.0, 0.9, 1.1, 0.984, 7, "visits")
    assert interval_note([three, three]) == "±: 75 % confidence interval over 3 visits"
    assert interval_note([seven, three]).endswith("75 % confidence interval over 3 to 7 visits")
    assert interval_note([Interval(1.0)]) == interval_note([]) == ""
