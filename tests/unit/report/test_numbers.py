"""The numbers of the page: one unit a table, doubts with their interval, a line a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from generated_results import SIZES, run_of

from commbench.analysis.combined import CombinedCases, combine_runs
from commbench.core.texts import interval_text, microseconds_text
from commbench.core.units import format_number
from commbench.report.numbers import (
    MOST_COLUMNS,
    BenchmarkLine,
    QuotedNumber,
    benchmark_lines,
    number_tables,
)
from commbench.report.summary import read_results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """By number: three ways to communicate, then the same in the next layout."""
    folder = tmp_path_factory.mktemp("runs")
    return [run_of(folder, number) for number in range(7)]


def cases_of(chosen: list[Path], benchmark: str | None = None, **changed: Any) -> pd.DataFrame:
    return read_results(chosen, benchmark).cases.assign(**changed)


def choice_from(chosen: list[Path], benchmark: str | None = None, **changed: Any) -> CombinedCases:
    return combine_runs(cases_of(chosen, benchmark, **changed))


def test_sizes_are_down_and_what_distinguishes_is_across(runs: list[Path]) -> None:
    choice = choice_from(runs[:2], "all_reduce")
    (numbers,) = number_tables(choice)
    (table,) = numbers.tables
    assert (numbers.benchmark, numbers.shared, numbers.folded) == ("all_reduce", "", "")
    assert table.heads == ["gloo python", "mpi native"]
    assert [size for size, _ in table.rows][:4] == ["8 B", "32 B", "128 B", "512 B"]
    assert len(table.rows) == len(SIZES)


def test_all_numbers_of_a_table_have_one_unit(runs: list[Path]) -> None:
    choice = choice_from(runs[:2], "all_reduce")
    ((table,),) = (numbers.tables for numbers in number_tables(choice))
    assert table.unit == "median in us"
    for backend, column in (("gloo", 0), ("mpi", 1)):
        own = choice.cases[choice.cases["backend"] == backend].sort_values("message_bytes")
        texts = [number.text for _, cells in table.rows for number in cells[column]]
        assert texts == list(map(microseconds_text, own["median_s"]))


def test_a_collective_has_its_bus_bandwidth_and_a_bandwidth_its_rate(runs: list[Path]) -> None:
    rate = cases_of(runs[:1], "all_reduce")["algbw_gb_per_s"]
    (collective,) = number_tables(choice_from(runs[:1], "all_reduce", busbw_gb_per_s=1.5 * rate))
    assert [table.unit for table in collective.tables] == ["median in us", "busbw in GB/s"]
    largest = collective.tables[1].rows[-1][1][0][0]
    assert largest.text == format_number(1.5 * rate.iloc[-1])
    latency = cases_of(runs[:1], "p2p_latency", busbw_gb_per_s=rate)
    (bandwidth,) = number_tables(combine_runs(latency.assign(benchmark="p2p_bandwidth")))
    assert [table.unit for table in bandwidth.tables] == ["algbw in GB/s"]


def test_a_number_in_doubt_stands_with_its_interval_and_its_level(runs: list[Path]) -> None:
    """Of the generated cases only those of 8 B are noisy."""
    levels = [0.75] + [0.969] * 9
    choice = choice_from(runs[:1], "all_reduce", interval_level=levels)
    ((table,),) = (numbers.tables for numbers in number_tables(choice))
    case = choice.cases.sort_values("message_bytes").iloc[0]
    interval = interval_text(case.ci_low_s, case.ci_high_s, microseconds_text)
    (noisy,) = table.rows[0][1][0]
    assert noisy.doubts == "noisy"
    assert noisy.shown == f"{microseconds_text(case.median_s)} ! ({interval} at 75 %)"
    (certain,) = table.rows[1][1][0]
    assert certain.shown == certain.text and " at " not in certain.tip


def test_a_doubt_of_any_run_is_one_of_the_case(runs: list[Path]) -> None:
    """The second run of the same cases is noisy at all sizes, the first one at none."""
    cases = cases_of(runs[:1], "all_reduce")
    first = cases.assign(warnings=[[]] * len(cases))
    second = cases.assign(run_id="again", warnings=[["noisy"]] * len(cases))
    combined = combine_runs(pd.concat([first, second], ignore_index=True))
    assert {tuple(flags) for flags in combined.cases["warnings"]} == {("noisy",)}


def test_the_limit_is_named_in_words(runs: list[Path]) -> None:
    (numbers,) = number_tables(choice_from(runs[:1], "all_reduce"))
    assert numbers.limit == "limit 12.5 GB/s: network (100 Gb/s)"
    measured = choice_from(runs[:1], "all_reduce", limit_name="measured copy by a core")
    (numbers,) = number_tables(measured)
    assert numbers.limit == "limit 12.5 GB/s: memory (measured copy by a core)"
    (numbers,) = number_tables(choice_from(runs[:1], "all_reduce", limit_name="PCIe gen5 x16"))
    assert numbers.limit == "limit 12.5 GB/s: published rate of the link (PCIe gen5 x16)"
    (numbers,) = number_tables(choice_from(runs[:1], "all_reduce", limit_gb_per_s=None))
    assert numbers.limit == ""


def test_what_all_columns_share_is_left_out(runs: list[Path]) -> None:
    (numbers,) = number_tables(choice_from(runs[::3], "all_reduce"))  # gloo in three layouts
    assert numbers.tables[0].heads == ["1x2", "1x4", "2x2"]


def test_columns_are_sorted_as_numbers(runs: list[Path]) -> None:
    cases = cases_of(runs[:1], "p2p_latency")
    several = [
        cases.assign(streams=count, case_id=cases["case_id"] + str(count)) for count in (16, 1, 2)
    ]
    (numbers,) = number_tables(combine_runs(pd.concat(several, ignore_index=True)))
    assert numbers.tables[0].heads == ["streams 1", "streams 2", "streams 16"]


def test_windows_at_the_same_sizes_are_columns_and_one_that_shrinks_is_not(
    runs: list[Path],
) -> None:
    cases = cases_of(runs[:1], "p2p_latency", warnings=[[]] * 10).assign(benchmark="p2p_bandwidth")
    sizes = cases["message_bytes"]
    many = cases.assign(window=[64] * 9 + [16], case_id=cases["case_id"] + "64")
    few = cases.assign(window=16, case_id=cases["case_id"] + "16")[sizes < sizes.max()]
    (numbers,) = number_tables(combine_runs(pd.concat([many, few], ignore_index=True)))
    (table,) = numbers.tables
    assert table.heads == ["gloo python window 16", "gloo python window 64"]
    assert all(len(cell) == 1 for _, cells in table.rows for cell in cells)
    (shrinking,) = number_tables(combine_runs(many))
    assert shrinking.shared == "gloo python"


def test_one_column_is_named_above_the_table(runs: list[Path]) -> None:
    (numbers,) = number_tables(choice_from(runs[:1], "all_reduce"))
    assert (numbers.shared, numbers.tables[0].heads) == ("gloo python", ["median"])


def test_large_tables_and_those_after_the_third_are_folded(runs: list[Path]) -> None:
    (numbers,) = number_tables(choice_from(runs, "all_reduce"))
    assert numbers.folded == "10 sizes, 7 columns" and MOST_COLUMNS == 6
    several = number_tables(choice_from(runs[:2]))
    assert [each.folded for each in several] == [""] * 3 + ["10 sizes, 2 columns"] * 7


def line_text(line: BenchmarkLine) -> str:
    sizes = [
        f"{of_size.size}: "
        + ", ".join(f"{number.name} {number.text}" for number in of_size.numbers)
        for of_size in line.sizes
    ]
    return f"{line.benchmark} {'; '.join(sizes)}"


def test_a_line_has_the_smallest_and_the_largest_size_the_best_first(runs: list[Path]) -> None:
    changed = {"warnings": [[]] * 20, "median_s": [10e-6] * 10 + [1e-6] * 10}
    (line,) = benchmark_lines(choice_from(runs[:2], "p2p_latency", **changed))
    assert line_text(line) == (
        "p2p_latency 8 B: mpi native 1.00 us, gloo python 10.0 us;"
        " 2 MiB: mpi native 1.00 us, gloo python 10.0 us"
    )


def test_a_line_of_a_collective_ends_with_its_bus_bandwidth(runs: list[Path]) -> None:
    changed = {"warnings": [[]] * 20, "busbw_gb_per_s": [1.0] * 10 + [2.0] * 10}
    (line,) = benchmark_lines(choice_from(runs[:2], "all_reduce", **changed))
    assert line_text(line).endswith(
        "2 MiB: mpi native 2.00 GB/s busbw, gloo python 1.00 GB/s busbw"
    )


def test_a_number_without_an_interval_says_so() -> None:
    assert QuotedNumber("1.00", "no interval", "", "noisy").shown == "1.00 ! (no interval)"
