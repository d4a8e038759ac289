"""Tables of numbers: sorted, by size, with the names that distinguish, and folded where they are
large."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_results import SIZES, run_of

from commbench.report.combined import CombinedCases, combine_runs
from commbench.report.page_parts import MOST_COLUMNS, by_variables, number_tables
from commbench.report.summary import read_results
from commbench.report.texts import interval_text


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """By number: three ways to communicate, then the same in the next layout."""
    folder = tmp_path_factory.mktemp("runs")
    return [run_of(folder, number) for number in range(7)]


def choice_from(chosen: list[Path], benchmark: str | None = None) -> CombinedCases:
    return combine_runs(read_results(chosen, benchmark).cases)


def test_sizes_are_down_and_what_distinguishes_is_across(runs: list[Path]) -> None:
    choice = choice_from(runs[:2], "all_reduce")
    (table,) = number_tables(choice)
    assert (table.benchmark, table.shared, table.folded) == ("all_reduce", "", "")
    assert table.heads == ["gloo python", "mpi native"]
    assert [size for size, _ in table.rows][:4] == ["8 B", "32 B", "128 B", "512 B"] and len(
        table.rows
    ) == len(SIZES)
    case = choice.cases[
        (choice.cases["backend"] == "gloo") & (choice.cases["message_bytes"] == 8)
    ].iloc[0]
    assert table.rows[0][1][0].tip == interval_text(case.ci_low_s, case.ci_high_s)
    assert table.rows[0][1][0].text.endswith(" us") and "GB/s" not in table.rows[0][1][0].text


def test_what_all_columns_share_is_left_out(runs: list[Path]) -> None:
    (table,) = number_tables(choice_from(runs[::3], "all_reduce"))  # gloo in three layouts
    assert table.heads == ["1x2", "1x4", "2x2"]


def test_one_column_is_named_above_the_table_and_a_bandwidth_benchmark_has_rates(
    runs: list[Path],
) -> None:
    cases = read_results(runs[:1], "all_reduce").cases
    (table,) = number_tables(combine_runs(cases))
    assert (table.shared, table.heads) == ("gloo python", ["time"])
    (table,) = number_tables(combine_runs(cases.assign(benchmark="p2p_bandwidth")))
    assert all(cell.text.endswith(" GB/s") for _, cells in table.rows for cell in cells)


def test_large_tables_and_those_after_the_third_are_folded(runs: list[Path]) -> None:
    (table,) = number_tables(choice_from(runs, "all_reduce"))
    assert table.folded == "10 sizes, 7 columns" and MOST_COLUMNS == 6
    tables = number_tables(choice_from(runs[:2]))
    assert [table.folded for table in tables] == [""] * 3 + ["10 sizes, 2 columns"] * 7


def test_cases_are_in_an_order_that_does_not_depend_on_that_of_the_rows(runs: list[Path]) -> None:
    cases = read_results([runs[0], runs[1], runs[3]]).cases
    choice = combine_runs(cases.sample(frac=1, random_state=0))
    order = sorted(choice.cases.to_dict("records"), key=lambda row: by_variables(choice, row))
    keys = [
        (row["benchmark"], row["backend"], row["layout"], row["message_bytes"]) for row in order
    ]
    assert keys == sorted(keys) and len(keys) == 300
