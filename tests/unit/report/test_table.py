"""One table in several forms."""

from __future__ import annotations

from commbench.core.terminal import TableColumn
from commbench.report.table import MOST_ROWS, Table


def test_markdown_keeps_every_cell_in_its_place() -> None:
    table = Table.of(("a|b", "time\nus"), [("x\ny", "*1* <b> \x1b")], "title")
    assert table.markdown.splitlines() == [
        "title",
        "",
        "| a\\|b | time us |",
        "| --- | --- |",
        "| x y | \\*1\\* \\<b> \\\\x1b |",
    ]


def test_the_page_has_its_first_rows() -> None:
    table = Table.of(["n"], [(str(number),) for number in range(MOST_ROWS + 1)])
    assert len(table.shown) == MOST_ROWS


def test_columns_of_fixed_width_never_touch() -> None:
    columns = [TableColumn("size"), TableColumn("us", right=True), TableColumn("us", right=True)]
    table = Table(columns, [("8", "1.00", "22"), ("1024", "1234567", "3")])
    assert table.fixed((6, 6, 5)) == ["8       1.00   22", "1024   1234567    3"]
