"""Bits beside the verdicts of a comparison."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.analysis.compared_case import ComparedCase, SideOfCase
from commbench.features.accuracy.compared import bits_word, cells, change, summary
from commbench.report.compare_text import comparison_summary, comparison_table
from commbench.results.row import Measured

NONE: tuple[str, ...] = ()


def side(*hashes: tuple[str, ...]) -> SideOfCase:
    """Launches with these hashes."""
    return SideOfCase(tuple(launch(launch_hashes=own or None) for own in hashes))


def launch(**values: Any) -> Measured:
    row = case_row(status="ok", benchmark="all_reduce", median_s=1e-6, **values)
    assert isinstance(row, Measured)
    return row


def case(base: SideOfCase, new: SideOfCase) -> ComparedCase:
    row = case_row(benchmark="all_reduce")
    return ComparedCase((row, row), base, new)


@pytest.mark.parametrize(
    ("base", "new", "word"),
    [
        ([("a",), ("a",)], [("a", "a")], "same"),
        ([("a",), ("a",)], [("b",)], "other"),
        ([("a",)], [("a",), ("b",)], "varying"),
        ([("a",)], [NONE], "BASE only"),
        ([NONE], [("a",)], "NEW only"),
        ([NONE], [NONE], "-"),
    ],
)
def test_bits_are_the_same_where_all_launches_agree(
    base: list[tuple[str, ...]], new: list[tuple[str, ...]], word: str
) -> None:
    assert bits_word(case(side(*base), side(*new))) == word


def test_a_change_is_told_where_the_healthy_launches_agree() -> None:
    a, b, c, both = (launch(launch_hashes=own) for own in (("a",), ("b",), ("c",), ("a", "b")))
    after_an_update = [a, a, a, b]
    for healthy, new in (([a, a], b), ([a], both), (after_an_update, c)):
        assert change(healthy, [new]).startswith("other bits than the healthy runs")
    for healthy, new in (([a], a), ([both], b), ([a, b], c), ([], b), (after_an_update, b)):
        assert change(healthy, [new]) == ""


def test_the_verdicts_of_time_have_a_column_of_bits_beside_them() -> None:
    same = case(side(("a",)), side(("a",)))
    other = case(side(("a",)), side(("b",)))
    table = comparison_table([same, other])
    assert [column.heading for column in table.columns][-1] == "bits"
    assert [row[-1] for row in table.rows] == ["same", "other"]
    assert comparison_summary([same, other]).endswith("same bits in 1, other bits in 1")


def test_without_such_payloads_nothing_is_said() -> None:
    plain = case(side(NONE), side(NONE))
    assert cells(plain) == {"bits": "-"} and summary([plain]) == ""
    assert "bits" not in [column.heading for column in comparison_table([plain]).columns]
