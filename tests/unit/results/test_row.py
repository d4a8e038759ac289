"""A row of cases.parquet: made of plain values, and given back as such."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import pytest

from commbench.results.row import WORDS, Measured, Row, plain_values, row_of

PLAIN: dict[str, Any] = {
    "benchmark": "all_reduce", "backend": "gloo", "layout": "1x2", "engine": "python",
    "message_bytes": 8, "elements": 2, "sync": "barrier", "device": "cpu", "timing": "quick",
    "cache": "warm", "library": "torch", "env": {"B": "2", "A": "1"}, "status": "ok",
    "median_s": 1e-6, "warnings": ["skewed"], "visit_medians_s": [1e-6, 2e-6],
    "started_at": datetime(2026, 1, 2, tzinfo=timezone.utc),
}  # fmt: skip


def test_lists_and_maps_are_tuples_and_null_is_the_default_of_a_column() -> None:
    row = row_of(PLAIN | {"label": None, "warnings": None})
    assert (row.env, row.visit_medians_s) == ((("A", "1"), ("B", "2")), (1e-6, 2e-6))
    assert (row.label, row.warnings, row.p99_s) == (None, (), None)
    assert hash(row) == hash(row_of(PLAIN | {"warnings": []}))


def test_a_map_may_come_as_pairs() -> None:
    assert row_of(PLAIN | {"env": [("B", "2"), ("A", "1")]}) == row_of(PLAIN)


@pytest.mark.parametrize(
    ("values", "kind"),
    [({}, Measured), ({"status": "failed"}, Row), ({"median_s": None}, Row)],
    ids=["ok", "failed", "without a time"],
)
def test_a_row_that_is_ok_is_measured(values: dict[str, Any], kind: type[Row]) -> None:
    assert type(row_of(PLAIN | values)) is kind


def test_columns_of_a_later_commbench_are_left_out() -> None:
    assert row_of(PLAIN | {"colour": "red"}) == row_of(PLAIN)


def test_the_plain_values_give_the_row_again() -> None:
    values = plain_values(row_of(PLAIN))
    assert values["env"] == {"A": "1", "B": "2"}
    assert row_of(values) == row_of(PLAIN)
    assert values.keys() == asdict(row_of(PLAIN)).keys()


def test_the_words_of_a_column_are_those_of_its_type() -> None:
    assert WORDS["status"] == ("ok", "skipped", "failed", "invalid")
    assert {"headline", "stop_reason", "interval_of", "limit_kind"} <= WORDS.keys()
    assert not {"reason", "warnings", "engine"} & WORDS.keys()


@pytest.mark.parametrize(
    ("median_of", "is_half"),
    [
        ("half a round trip", True),
        ("half a round trip, mean", True),  # as OSU's programs tell it
        ("window / messages", False),
        ("computation", False),  # overlap beside a p2p_latency times something else
        (None, False),
    ],
)
def test_a_ping_pong_is_known_by_what_is_timed(median_of: str | None, is_half: bool) -> None:
    row = row_of(PLAIN | {"benchmark": "p2p_latency", "median_of": median_of})
    assert row.is_half_round_trip is is_half
