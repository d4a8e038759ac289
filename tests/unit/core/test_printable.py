"""What a terminal would act on is shown, not sent."""

from __future__ import annotations

import unicodedata
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from commbench.core.terminal import (
    LONGEST_LINE,
    TableColumn,
    Terminal,
    one_line,
    printable,
    table_text,
)
from commbench.core.units import format_ranges, parse_ranges


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("a\rb\x08c\x7f", "a\\rb\\x08c\\x7f"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("two\nlines, µs, 節, é", "two\nlines, µs, 節, é"),
    ],
)
def test_escapes_are_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_nothing_that_controls_a_terminal_is_left(text: str) -> None:
    shown = printable(text)
    assert {unicodedata.category(char) for char in shown if char != "\n"}.isdisjoint(
        {"Cc", "Cs", "Zl", "Zp"}
    )
    assert printable(shown) == shown
    shown.encode()


@given(st.text(st.characters()))
def test_one_line_never_breaks(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


def test_a_long_line_keeps_both_ends() -> None:
    line = one_line("seen " + "x" * 10**6 + " allowed")
    assert (
        len(line) < LONGEST_LINE + 10 and line.startswith("seen x") and line.endswith("x allowed")
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("0\n", [0]),
        ("5,1-2", [5, 1, 2]),
        ("3-1", []),
        ("a-b", []),
        ("", []),
        ("0-999999", []),
        ("0-99999999999999999999", []),
        ("\u0660-\u0663", []),
        ("x", []),
    ],
)
def test_reading(text: str, numbers: list[int]) -> None:
    assert parse_ranges(text) == numbers


def test_writing() -> None:
    assert format_ranges({8, 0, 1, 2, 3}) == "0-3,8"
    assert format_ranges([5, 5]) == "5"
    assert format_ranges([]) == ""


@given(st.sets(st.integers(0, 300)))
def test_a_written_list_names_every_number_once(numbers: set[int]) -> None:
    assert parse_ranges(format_ranges(numbers)) == sorted(numbers)


def test_a_table_that_is_too_wide_keeps_its_headings_and_shortens_texts_by_their_width() -> None:
    columns = [TableColumn("name"), TableColumn("median\nus", right=True), TableColumn("reason")]
    _, headings, line = table_text(
        columns, [["p2p_latency", "8.65", "節" * 30]], Terminal(width=40)
    ).splitlines()
    assert line.endswith("節 ..") and cell_len(line) <= 40
    assert headings.split() == ["name", "us", "reason"]
    narrow = table_text(columns[:2], [["p2p_latency", "8.65"]], Terminal(width=14))
    assert narrow.splitlines()[1].split() == ["name", "us"]


def test_a_heading_is_as_printable_as_a_cell() -> None:
    columns = [TableColumn("\x1b[2J\u202ebackend\nus")]
    heading, unit, cell = table_text(columns, [["\x1b[2J"]], Terminal(80)).splitlines()
    assert (heading, unit, cell) == ("\\x1b[2J\\u202ebackend", "us", "\\x1b[2J")


@pytest.mark.parametrize("width", [80, None])
@pytest.mark.parametrize("cell", [" ", "x", "x y ", "漢"])
def test_a_table_takes_time_in_proportion_to_its_texts(cell: str, width: int | None) -> None:
    columns = [TableColumn("name"), TableColumn("reason", prose=True)]
    seconds = []
    for length in (10_000, 80_000):
        text = cell * (length // len(cell))
        begun = process_time()
        table = table_text(columns, [[text, "."], [".", text]], Terminal(width))
        seconds.append(process_time() - begun)
        assert width is None or cell_len(table.splitlines()[1]) <= width
    assert seconds[1] < 20 * max(seconds[0], 0.05)


def test_no_line_of_a_table_ends_in_spaces() -> None:
    rows = [["a", "b"], ["a", ""]]
    plain = table_text([TableColumn("x"), TableColumn("wide column")], rows, Terminal(80))
    assert plain.splitlines() == ["x  wide column", "a  b", "a"]
    colored = table_text([TableColumn("x"), TableColumn("y")], rows, Terminal(80, True), {1: "dim"})
    assert all(
        line.replace("\x1b[0m", "") == line.replace("\x1b[0m", "").rstrip()
        for line in colored.splitlines()
    )
