"""The numbers of the page: sizes down, what distinguishes across, and each benchmark's headline."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from generated_results import SIZES, run_of

from commbench.analysis.combined import combine_runs
from commbench.report.numbers import headline_table, number_sections
from commbench.report.section import Section
from commbench.report.summary import read_results
from commbench.results.row import Row


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """By number: three ways to communicate, then the same in the next layout."""
    folder = tmp_path_factory.mktemp("runs")
    return [run_of(folder, number) for number in range(7)]


def cases_of(chosen: list[Path], benchmark: str | None = None, **changed: Any) -> list[Row]:
    return [replace(row, **changed) for row in read_results(chosen, benchmark).rows]


def sections_of(*cases: list[Row]) -> list[Section]:
    return list(number_sections(combine_runs(list(chain.from_iterable(cases)))))


def test_sizes_are_down_and_what_distinguishes_is_across(runs: list[Path]) -> None:
    ((table,),) = (section.tables for section in sections_of(cases_of(runs[:2], "all_reduce")))
    assert list(table.heads) == ["size", "gloo python", "mpi native"]
    assert [row[0] for row in table.rows][:4] == ["8 B", "32 B", "128 B", "512 B"]
    assert len(table.rows) == len(SIZES)
    (layouts,) = sections_of(cases_of(runs[::3], "all_reduce"))
    assert list(layouts.tables[0].heads) == ["size", "1x2", "1x4", "2x2"], "what all share is not"


def test_columns_are_sorted_as_numbers(runs: list[Path]) -> None:
    cases = cases_of(runs[:1], "p2p_latency")
    several = [
        replace(row, streams=count, case_id=f"{row.case_id}{count}")
        for count in (16, 1, 2)
        for row in cases
    ]
    (section,) = sections_of(several)
    assert list(section.tables[0].heads) == ["size", "streams 1", "streams 2", "streams 16"]


def test_a_table_has_one_unit_and_each_number_its_width(runs: list[Path]) -> None:
    cases = cases_of(runs[:1], "all_reduce", median_s=2e-6, ci_low_s=1.7e-6, ci_high_s=2.3e-6)
    ((table,),) = (section.tables for section in sections_of(cases))
    assert table.title == "time in us"
    assert {row[1] for row in table.rows} == {"~2.00 ±15%"}


def test_a_collective_has_its_bus_bandwidth_and_a_window_its_rate(runs: list[Path]) -> None:
    (collective,) = sections_of(cases_of(runs[:1], "all_reduce", busbw_gb_per_s=1.5))
    assert [table.title.split()[0] for table in collective.tables] == ["time", "algbw", "busbw"]
    (bandwidth,) = sections_of(cases_of(runs[:1], "p2p_latency", window=64))
    assert [table.title.split()[0] for table in bandwidth.tables] == ["bandwidth"]


def test_windows_at_the_same_sizes_are_columns_and_one_that_shrinks_is_not(
    runs: list[Path],
) -> None:
    cases = [replace(row, benchmark="p2p_bandwidth") for row in cases_of(runs[:1], "p2p_latency")]
    windows = [64] * 9 + [16]
    many = [
        replace(row, window=window, case_id=f"{row.case_id}64")
        for row, window in zip(cases, windows, strict=True)
    ]
    few = [replace(row, window=16, case_id=f"{row.case_id}16") for row in cases[:-1]]
    (both,) = sections_of(many, few)
    heads = ["size", "gloo python window 16", "gloo python window 64"]
    assert list(both.tables[0].heads) == heads
    assert not any(" / " in cell for row in both.tables[0].rows for cell in row)
    (shrinking,) = sections_of(many)
    assert list(shrinking.tables[0].heads) == [*heads[:1], "gloo python"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "12.5 GB/s: network (100 Gb/s)"),
        ({"limit_name": "eth0", "limit_kind": "memory"}, "GB/s: memory (eth0)"),
        ({"limit_name": "eth0", "limit_kind": "pcie"}, "published rate of the link (eth0)"),
        ({"limit_name": "eth0", "limit_kind": None}, "GB/s: eth0"),  # a run of an older commbench
    ],
)
def test_the_limit_is_named_in_words(runs: list[Path], changed: dict[str, Any], words: str) -> None:
    (section,) = sections_of(cases_of(runs[:1], "all_reduce", **changed))
    assert words in section.notes[0]
    (unknown,) = sections_of(cases_of(runs[:1], "all_reduce", limit_gb_per_s=None))
    assert not unknown.notes


def test_large_tables_and_those_after_the_third_are_folded(runs: list[Path]) -> None:
    assert [each.is_folded for each in sections_of(cases_of(runs, "all_reduce"))] == [True]
    several = sections_of(cases_of(runs[:2]))
    assert [each.is_folded for each in several] == [False] * 3 + [True] * 7


def test_the_headline_has_each_number_once_and_the_fastest(runs: list[Path]) -> None:
    def cases(benchmark: str) -> list[Row]:
        planted = zip(runs[:2], (10e-6, 1e-6), (1.0, 2.0), strict=True)
        return [
            row
            for run, median_s, busbw in planted
            for row in cases_of(
                [run],
                benchmark,
                median_s=median_s,
                ci_low_s=median_s,
                ci_high_s=median_s,
                busbw_gb_per_s=busbw if benchmark == "all_reduce" else None,
            )
        ]

    latency = headline_table(combine_runs(cases("p2p_latency")))
    heads = ["operation", "message", "gloo python", "mpi native", "fastest in this run"]
    assert list(latency.heads) == heads
    numbers = ("10.0 us ±0%", "1.00 us ±0%", "mpi 1x2 (native)")
    ends = [("p2p_latency", "8 B", *numbers), ("p2p_latency", "2 MiB", *numbers)]
    assert list(latency.rows) == ends
    last = headline_table(combine_runs(cases("all_reduce"))).rows[1]
    assert last == ("all_reduce", "2 MiB", "1.00 GB/s ±0%", "2.00 GB/s ±0%", "mpi 1x2 (native)")


def test_many_lines_are_a_column_for_each_backend_with_its_best(runs: list[Path]) -> None:
    table = headline_table(combine_runs(cases_of(runs, "p2p_latency")))
    assert list(table.heads[:4]) == ["operation", "message", "gloo", "mpi"]
    assert [row[0] for row in table.rows[::2]] == [
        f"p2p_latency on {ranks} ranks" for ranks in (2, 4)
    ]
    assert all(float(row[3].split()[0]) < 1.0 for row in table.rows[::2]), "native, not python"


def test_a_flag_of_any_run_is_one_of_the_case(runs: list[Path]) -> None:
    first = cases_of(runs[:1], "all_reduce", warnings=())
    second = cases_of(runs[:1], "all_reduce", run_id="again", warnings=("skewed",))
    assert {row.warnings for row in combine_runs([*first, *second]).rows} == {("skewed",)}
