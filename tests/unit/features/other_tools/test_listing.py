"""Numbers, comments and the order of tables, as the writers of other tools' columns share them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_cases import RUN, case_row, measured_row

from commbench.features.other_tools.listing import (
    comment,
    flag_lines,
    heading,
    number,
    preface,
    status_line,
    tables,
)
from commbench.features.other_tools.nccl_tests import NcclTests
from commbench.features.other_tools.osu import Osu
from commbench.results.row import Row

LABELLED = RUN | {"label": "x"}


def row(**more: Any) -> Row:
    return case_row(**{"benchmark": "b", "launch": 0} | more)


@given(st.text())
def test_a_comment_is_one_line_that_begins_with_its_sign(text: str) -> None:
    line = comment(text)
    assert line.startswith("# ")
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    assert comment(line[2:]) == line


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "N/A"),
        (0, "0.00"),
        (12345.678, "12345.68"),
        (1, "1.00"),
        (0.1, "0.100"),
        (0.000667, "0.000667"),
    ],
)
def test_numbers_have_two_decimals_or_three_digits(value: float | None, expected: str) -> None:
    assert number(value) == expected


@given(st.floats(1e-12, 1e12))
def test_a_number_is_right_to_half_a_percent(value: float) -> None:
    assert math.isclose(float(number(value)), value, rel_tol=0.00501)


def test_a_map_and_pairs_of_an_environment_are_the_same_table() -> None:
    rows = [row(env=(("A", "b"),)), row(env={"A": "b"}, message_bytes=4), row(env={"A": "c"})]
    assert [[entry.message_bytes for entry in table] for table in tables(rows, ())] == [
        [4, 8],
        [8],
    ]


def test_columns_keep_rows_together() -> None:
    rows = [row(root=2), row(root=10), row(root=None)]
    assert [entry.root for entry in tables(rows, ("root",))[0]] == [None, 2, 10]
    assert len(tables(rows, ())) == 3


def test_a_heading_names_what_varies_and_the_preface_the_rest() -> None:
    rows = [row(window=2, cache="warm"), row(window=64, cache="warm")]
    every = "# b, as their_b: layout 1x2, engine python, dtype float32"
    assert heading(rows[1:], rows, "their_b", ()) == f"{every}, window 64"
    assert heading(rows[1:], rows, "their_b", ("window",)) == every
    assert preface(LABELLED, rows, "them")[0].endswith("in the columns of them: run r, label x")
    (shared,) = preface(LABELLED, rows, "them")[2:]
    assert shared.startswith("# wherever it applies: backend gloo, ") and ", cache warm" in shared
    assert "window" not in shared


def test_a_refusal_says_status_size_and_reason() -> None:
    refused = row(status="skipped", reason="no", message_bytes=2048)
    assert status_line(refused, ", in place") == "# skipped: 2 KiB, in place: no"


def test_doubts_name_the_sizes_they_are_about() -> None:
    rows = [
        row(status="ok", warnings=["noisy"]),
        row(status="ok", warnings=["skewed", "noisy"], message_bytes=1024),
    ]
    rows += [
        row(status="ok", warnings=["noisy"]),
        row(status="ok", warnings=[]),
        row(status="failed", warnings=["drifting"]),
    ]
    assert flag_lines(rows) == ["# noisy: 8 B, 1 KiB", "# skewed: 1 KiB"]


# ---------------------------------------------------------------- what both writers do

WRITERS = pytest.mark.parametrize(
    ("writer", "benchmark"), [(Osu, "p2p_latency"), (NcclTests, "all_reduce")]
)


def data_lines(text: str) -> list[str]:
    """What a script would read."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@WRITERS
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("layout", ("1x2", "1x10")),
        ("backend", ("gloo", "mpi")),
        ("dtype", ("float16", "int8")),
        ("pair", ("0-2", "0-10")),
        ("window", (2, 64)),
        ("engine", ("native", "python")),
    ],
)
def test_each_value_of_a_variable_without_a_column_has_a_table(
    writer: Any, benchmark: str, name: str, values: tuple[Any, ...]
) -> None:
    text = writer().text(RUN, [measured_row(benchmark, **{name: value}) for value in values[::-1]])
    heads = [line for line in text.splitlines() if f"# {benchmark}, as " in line]
    assert [f"{name} {value}" in f"{line}," for line, value in zip(heads, values, strict=True)] == [
        True,
        True,
    ]
    assert len(data_lines(text)) == 2


@WRITERS
@given(label=st.text(), reason=st.text(), library=st.text())
def test_a_label_or_reason_never_looks_like_a_line_of_data(
    writer: Any, benchmark: str, label: str, reason: str, library: str
) -> None:
    run = RUN | {"label": label, "backend": {"name": "gloo", "library": library}}
    measured = measured_row(benchmark)
    failed = measured_row(benchmark, message_bytes=8, status="failed", reason=reason)
    (line,) = data_lines(writer().text(RUN, [measured]))
    assert line.split()[0] == "1024" and data_lines(writer().text(run, [measured, failed])) == [
        line
    ]


@WRITERS
def test_doubts_stand_below_their_numbers(writer: Any, benchmark: str) -> None:
    rows = [measured_row(benchmark, message_bytes=8, warnings=["noisy"]), measured_row(benchmark)]
    text = writer().text(RUN, rows).splitlines()
    assert text[text.index("# noisy: 8 B") - 1].split()[0] == "1024"


@pytest.mark.parametrize(
    ("writer", "lacking"), [(Osu, ("exchange", "halo")), (NcclTests, ("p2p_latency", "barrier"))]
)
def test_an_operation_that_the_other_tool_lacks_is_counted(
    writer: Any, lacking: tuple[str, str]
) -> None:
    first, second = lacking
    names = [(first, 1024), (first, 8), (second, 1024)]
    text = writer().text(RUN, [measured_row(name, message_bytes=size) for name, size in names])
    assert data_lines(text) == []
    counts = {
        name: line.split(";")[1].split()[1]
        for line in text.splitlines()
        for name in lacking
        if line.startswith(f"# {name}:")
    }
    assert counts == {first: "2", second: "1"}


@WRITERS
def test_the_later_of_two_rows_of_a_case_is_printed_at_the_end(
    writer: Any, benchmark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = writer()
    opened.begin(RUN, "")
    for time_s in (1e-6, 3e-6):
        opened.cases(
            [(measured_row(benchmark, case_id="a", mean_s=time_s, median_s=time_s), {}, {})]
        )
    assert capsys.readouterr().out == ""
    opened.end(RUN)
    (line,) = data_lines(capsys.readouterr().out)
    assert "3.00" in line.split() and "1.00" not in line.split()
