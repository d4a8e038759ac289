"""Sections on a terminal: cut at the rows that are wanted, and as wide as it is."""

from __future__ import annotations

import pytest

from commbench.core.terminal import Terminal
from commbench.report.section import Figure, Section, clean, report_text
from commbench.report.table import Table

WIDE = Terminal(None)
ROWS = [(f"all_reduce {number}", str(number)) for number in range(5)]
SECTION = Section(
    "Title",
    [f"answer {number}" for number in range(5)],
    [Table.of(("case", "time\nus"), ROWS, "of a table")],
    notes=["a note"],
)


def test_it_has_title_sentences_table_and_notes_in_this_order() -> None:
    text = SECTION.text(9, WIDE)
    places = [text.index(part) for part in ("Title", "answer 0", "of a table", "all_", "a note")]
    assert places == sorted(places) and "--top" not in text


def test_top_cuts_lists_and_tables_and_says_so() -> None:
    text = SECTION.text(3, WIDE)
    assert "answer 2" in text and "answer 3" not in text
    assert "all_reduce 2" in text and "all_reduce 3" not in text
    assert text.count("... and 2 more: --top 5") == 2


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_lacks_columns_of_low_priority_and_never_a_line_end(width: int) -> None:
    cells = ("p2p_latency 8 B", "1.00", "a source that is as long as a line of a terminal is wide")
    heads = ("case", "us", "source")
    table = Table.of(heads, [cells], priorities={"source": 1})
    text = Section("t", ["word " * 40], [table], notes=["word " * 40]).text(9, Terminal(width))
    assert max(map(len, text.splitlines())) <= width and "p2p_latency 8 B" in text


def test_the_terminal_has_its_sections_and_no_figure() -> None:
    drawn: list[Figure] = []
    figures = Section("On the page", figures=lambda: drawn[0:1], is_on_terminal=False)
    text = report_text([SECTION, figures, Section("Last", ["x"])], 9, WIDE)
    assert "On the page" not in text and "\n\nLast\n" in text and text.endswith("x\n")


def test_characters_that_html_and_xml_forbid_are_replaced() -> None:
    assert clean("a\x00b\x1b\ud800c\n") == "a\ufffdb\ufffd\ufffdc\n"
