"""The columns of nccl-tests: both halves of a line, the closing lines, and what is said about
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_cases import RUN, measured_row

import commbench
from commbench.features.other_tools.nccl_tests import NCCL_TESTS_PROGRAMS, NcclTests
from commbench.results.load import read_rows

CELLS = 13


def row(benchmark: str = "all_reduce", **more: Any) -> dict[str, Any]:
    return measured_row(benchmark, **more)


def lines(*rows: dict[str, Any]) -> list[str]:
    return NcclTests().text(RUN, rows).splitlines()


def measured(text: list[str]) -> list[list[str]]:
    """The lines that a script would read, by column."""
    return [line.split() for line in text if line and not line.startswith("#")]


def after(text: list[str], start: str) -> list[str]:
    return [line.removeprefix(start) for line in text if line.startswith(start)]


# ---------------------------------------------------------------- lines


def test_both_halves_stand_in_one_line() -> None:
    halves = (
        row(in_place=True),
        row(in_place=False, median_s=4e-6, algbw_gb_per_s=0.25, busbw_gb_per_s=0.375),
    )
    (cells,) = measured(lines(*halves))
    assert cells[:5] == ["1024", "256", "float", "sum", "-1"]
    assert cells[5:] == ["4.00", "0.250", "0.375", "0", "2.00", "0.500", "0.750", "0"]


@pytest.mark.parametrize(
    ("in_place", "missing"), [(True, slice(5, 9)), (False, slice(9, 13)), (None, slice(5, 9))]
)
def test_the_half_that_was_not_measured_is_not_available(
    in_place: bool | None, missing: slice
) -> None:
    (cells,) = measured(lines(row(in_place=in_place)))
    assert len(cells) == CELLS
    assert cells[missing] == ["N/A"] * 4
    assert cells.count("N/A") == 4


def test_the_heads_name_as_many_columns_as_a_line_has() -> None:
    text = lines(row())
    at = next(index for index, line in enumerate(text) if line.split()[1:2] == ["size"])
    assert len(text[at].split()) - 1 == CELLS
    assert text[at - 1].split() == ["#", "out-of-place", "in-place"]
    ends = [
        index + len("time") for index in range(len(text[at])) if text[at].startswith("time", index)
    ]
    assert [text[at + 2][:end].split()[-1] for end in ends] == ["N/A", "2.00"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("float64", "double"), ("float16", "half"), ("bfloat16", "bfloat16"), ("uint8", "uint8")],
)
def test_types_have_their_names(ours: str, theirs: str) -> None:
    assert measured(lines(row(dtype=ours)))[0][2] == theirs


def test_no_reduction_is_none_and_no_root_is_minus_one() -> None:
    assert measured(lines(row("all_gather", reduction=None)))[0][3:5] == ["none", "-1"]
    assert measured(lines(row("reduce", root=0)))[0][3:5] == ["sum", "0"]


def test_a_rate_without_a_meaning_is_not_zero() -> None:
    """One rank alone has no bus."""
    text = lines(row(busbw_gb_per_s=None))
    assert measured(text)[0][9:] == ["2.00", "0.500", "N/A", "0"]
    assert after(text, "# Avg bus bandwidth    : ") == ["N/A"]


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize(("name", "values"), [("reduction", ("max", "sum")), ("root", (2, 10))])
def test_rows_that_differ_in_a_column_share_a_table(name: str, values: tuple[Any, ...]) -> None:
    rows = [
        row("reduce", message_bytes=size, **{name: value})
        for size in (1024, 8)
        for value in values[::-1]
    ]
    text = lines(*rows)
    assert len(after(text, "# Out of bounds values : ")) == 1
    place = 3 if name == "reduction" else 4
    assert [(cells[place], cells[0]) for cells in measured(text)] == [
        (str(value), size) for value in values for size in ("8", "1024")
    ]


def test_a_refused_half_is_a_comment_below_its_line() -> None:
    refused = row(in_place=False, status="skipped", reason="gloo reduces\nin place only")
    text = lines(row(), refused, row(message_bytes=2048, status="failed", reason="lost"))
    at = text.index("# skipped: 1 KiB, out of place: gloo reduces in place only")
    assert text[at - 1].split()[0] == "1024"
    assert text[at + 1] == "# failed: 2 KiB, in place: lost"
    assert len(measured(text)) == 1


# ---------------------------------------------------------------- closing lines


def test_the_mean_of_rates_is_there_and_says_that_it_is_no_result() -> None:
    text = lines(
        row(busbw_gb_per_s=1.0),
        row(in_place=False, busbw_gb_per_s=4.0),
        row(message_bytes=8, busbw_gb_per_s=4.0),
    )
    assert after(text, "# Avg bus bandwidth    : ") == ["3"]
    assert text[-2].startswith("# the average ")
    assert "no result: compare size by size" in text[-2]
    assert after(text, "# Out of bounds values : ") == ["0 OK"]


def test_wrong_elements_fail_and_their_rate_is_in_no_mean() -> None:
    wrong = row(
        message_bytes=8,
        status="invalid",
        reason="17 elements",
        wrong_elements=17,
        busbw_gb_per_s=None,
    )
    text = lines(row(), wrong)
    assert after(text, "# Out of bounds values : ") == ["17 FAILED"]
    assert after(text, "# Avg bus bandwidth    : ") == ["0.75"]


# ---------------------------------------------------------------- writer


def test_a_run_prints_the_numbers_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = commbench.run(
        "backend=simulated",
        "benchmark=[all_reduce,all_gather,broadcast,barrier]",
        "layout=1x4",
        "sizes=[8,1KiB]",
        "in_place=[true,false]",
        "timing=fixed",
        "timing.repetitions=20",
        "timing.warmup_s=0",
        "backend.model.noise=0.1",
        "writer=[parquet,nccl_tests]",
        f"output={tmp_path}",
    )
    text = capsys.readouterr().out.splitlines()
    cases = read_rows([folder])
    # 8 B of float32 among 4 ranks
    assert sum(line.startswith("# skipped: 8 B, ") for line in text) == 2
    columns = ["median_s", "algbw_gb_per_s", "busbw_gb_per_s"]
    for benchmark in ("all_reduce", "all_gather", "broadcast"):
        rows = cases[(cases.benchmark == benchmark) & (cases.status == "ok")].sort_values(
            "message_bytes"
        )
        at = next(
            index
            for index, line in enumerate(text)
            if f"as {NCCL_TESTS_PROGRAMS[benchmark]}" in line
        )
        table = measured(text[at : text.index("", at)])
        for start, placed in ((5, [False]), (9, [True, None])):
            half = rows[rows.in_place.isin(placed)]
            printed = [
                [float(cell) for cell in cells[start : start + 3]]
                for cells in table
                if cells[start] != "N/A"
            ]
            assert len(printed) == len(half)
            for numbers, (_, case) in zip(printed, half[columns].iterrows(), strict=True):
                assert numbers == pytest.approx(
                    [case.median_s * 1e6, case.algbw_gb_per_s, case.busbw_gb_per_s], rel=0.01
                )
