"""Tables of numbers: sorted, by size, with the names that distinguish, and folded where they are large."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_results import SIZES, run_of

from commbench.report.page_parts import MOST_COLUMNS, by_variables, number_tables
from commbench.report.recommend import Choice, choice_of, interval_text
from commbench.report.summary import read_results


def choice_from(tmp_path: Path, *numbers: int, benchmark: str | None = None) -> Choice:
    for number in numbers:
        run_of(tmp_path, number)
    return choice_of(read_results([tmp_path], benchmark).cases)


def test_sizes_are_down_and_what_distinguishes_is_across(tmp_path: Path) -> None:
    choice = choice_from(tmp_path, 0, 1, benchmark="all_reduce")
    (table,) = number_tables(choice)
    assert (table.benchmark, table.shared, table.heads, table.folded) == (
        "all_reduce",
        "",
        ["gloo python", "mpi native"],
        "",
    )
    assert [size for size, _ in table.rows][:4] == ["8 B", "32 B", "128 B", "512 B"] and len(table.rows) == len(SIZES)
    case = choice.cases[(choice.cases["backend"] == "gloo") & (choice.cases["message_bytes"] == 8)].iloc[0]
    assert table.rows[0][1][0].tip == interval_text(case.ci_low_s, case.ci_high_s)
    assert table.rows[0][1][0].text.endswith(" us") and "GB/s" not in table.rows[0][1][0].text


def test_what_all_columns_share_is_left_out(tmp_path: Path) -> None:
    (table,) = number_tables(choice_from(tmp_path, 0, 3, 6, benchmark="all_reduce"))  # gloo in three layouts
    assert table.heads == ["1x2", "1x4", "2x2"]


def test_one_column_is_named_above_the_table(tmp_path: Path) -> None:
    (table,) = number_tables(choice_from(tmp_path, 0, benchmark="all_reduce"))
    assert (table.shared, table.heads) == ("gloo python", ["time"])


def test_a_bandwidth_benchmark_has_rates(tmp_path: Path) -> None:
    run_of(tmp_path, 0)
    cases = read_results([tmp_path], "all_reduce").cases.assign(benchmark="p2p_bandwidth")
    (table,) = number_tables(choice_of(cases))
    assert all(cell.text.endswith(" GB/s") for _, cells in table.rows for cell in cells)


def test_large_tables_and_those_after_the_third_are_folded(tmp_path: Path) -> None:
    choice = choice_from(tmp_path, *range(7))
    tables = number_tables(choice)
    assert [table.folded for table in tables] == ["10 sizes, 7 columns"] * 10 and MOST_COLUMNS == 6
    tables = number_tables(choice_from(tmp_path / "two", 0, 1))
    assert [table.folded for table in tables] == [""] * 3 + ["10 sizes, 2 columns"] * 7


@pytest.mark.parametrize("turned", [False, True])
def test_cases_are_in_an_order_that_does_not_depend_on_that_of_the_rows(tmp_path: Path, turned: bool) -> None:
    for number in (0, 1, 3):
        run_of(tmp_path, number)
    cases = read_results([tmp_path]).cases
    choice = choice_of(cases[::-1] if turned else cases)
    order = sorted(choice.cases.to_dict("records"), key=lambda row: by_variables(choice, row))
    keys = [(row["benchmark"], row["backend"], row["layout"], row["message_bytes"]) for row in order]
    assert keys == sorted(keys) and len(keys) == 300
