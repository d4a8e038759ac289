"""Numbers, comments and the order of tables, as the writers of other tools' columns share them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.core.columns import VARIABLES
from commbench.writers.table import comment, flag_lines, heading, number, preface, status_line, tables

RUN = {"run_id": "r", "backend": {"name": "gloo"}, "world": {"size": 2, "nodes": 1}, "timing": "quick", "label": "x"}


def row(**more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {column.name: None for column in VARIABLES}
    return values | {"benchmark": "b", "layout": "1x2", "message_bytes": 8, "segment": 0} | more


@given(st.text())
def test_a_comment_is_one_line_that_begins_with_its_sign(text: str) -> None:
    line = comment(text)
    assert line.startswith("# ")
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    assert comment(line[2:]) == line


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "N/A"), (0, "0.00"), (12345.678, "12345.68"), (1, "1.00"), (0.1, "0.100"), (0.000667, "0.000667")],
)
def test_numbers_have_two_decimals_or_three_digits(value: float | None, expected: str) -> None:
    assert number(value) == expected


@given(st.floats(1e-12, 1e12))
def test_a_number_is_right_to_half_a_percent(value: float) -> None:
    assert math.isclose(float(number(value)), value, rel_tol=0.00501)


def test_a_map_and_pairs_of_an_environment_are_the_same_table() -> None:
    rows = [row(env=(("A", "b"),)), row(env={"A": "b"}, message_bytes=4), row(env={"A": "c"})]
    assert [[entry["message_bytes"] for entry in table] for table in tables(rows, ())] == [[4, 8], [8]]


def test_columns_keep_rows_together() -> None:
    rows = [row(root=2), row(root=10), row(root=None)]
    assert [entry["root"] for entry in tables(rows, ("root",))[0]] == [None, 2, 10]
    assert len(tables(rows, ())) == 3


def test_a_heading_names_what_varies_and_the_preface_the_rest() -> None:
    rows = [row(window=2, cache="warm"), row(window=64, cache="warm")]
    assert heading(rows[1:], rows, "their_b", ()) == "# b, as their_b: layout 1x2, window 64"
    assert heading(rows[1:], rows, "their_b", ("window",)) == "# b, as their_b: layout 1x2"
    assert preface(RUN, rows, "them")[0].endswith("in the columns of them: run r, label x")
    assert preface(RUN, rows, "them")[2:] == ["# wherever it applies: cache warm"]


def test_a_run_that_went_on_says_what_is_missing() -> None:
    assert "rows of earlier starts" in preface(RUN, [row(segment=1)], "them")[-1]


def test_a_refusal_says_status_size_and_reason() -> None:
    refused = row(status="skipped", reason="no", message_bytes=2048)
    assert status_line(refused, ", in place") == "# skipped: 2 KiB, in place: no"


def test_doubts_name_the_sizes_they_are_about() -> None:
    rows = [row(status="ok", warnings=["noisy"]), row(status="ok", warnings=["skewed", "noisy"], message_bytes=1024)]
    rows += [
        row(status="ok", warnings=["noisy"]),
        row(status="ok", warnings=[]),
        row(status="failed", warnings=["drifting"]),
    ]
    assert flag_lines(rows) == ["# noisy: 8 B, 1 KiB", "# skewed: 1 KiB"]
