"""Which rows stand in a line of a table, and what its columns show of them."""

from __future__ import annotations

import pytest
from sample_cases import measured_row

from commbench.core.terminal import TableColumn, Terminal
from commbench.report.quantities import MEDIAN
from commbench.report.row_table import (
    RowColumn,
    RowTable,
    fitted,
    lines_of,
    number_columns,
    row_column,
)
from commbench.results.row import Row

US = MEDIAN.unit([])
SIZE = row_column(TableColumn("size"), lambda row: str(row.message_bytes))


def row(backend: str, size: int, median_s: float) -> Row:
    return measured_row(
        "all_reduce",
        backend=backend,
        message_bytes=size,
        median_s=median_s,
        ci_low_s=median_s * 0.99,
        ci_high_s=median_s * 1.01,
    )


ROWS = [row("gloo", 8, 2e-6), row("mpi", 8, 1e-6), row("gloo", 64, 4e-6)]
LINES = lines_of(ROWS, lambda row: row.message_bytes, lambda row: row.backend)
GROUPS = [number_columns(name, MEDIAN, US, name) for name in ("gloo", "mpi")]


def test_rows_of_a_line_stand_below_their_headings() -> None:
    table = RowTable(LINES, [SIZE, *GROUPS[0], *GROUPS[1]]).drawn
    assert table.heads == ["size", "gloo", "±", "mpi", "±"]
    assert [list(cells) for cells in table.rows] == [
        ["8", "2.00", "±1%", "1.00", "±1%"],
        ["64", "4.00", "±1%", "-", ""],
    ]


def test_a_line_with_a_row_that_is_not_ok_is_red() -> None:
    lost = measured_row("all_reduce", status="failed", median_s=None)
    table = RowTable([{"": [ROWS[0]]}, {"": [lost]}], number_columns("us", MEDIAN, US)).drawn
    assert table.colors == {1: "red"} and table.rows[1][0] == "failed"


@pytest.mark.parametrize(("width", "tables"), [(80, 1), (20, 2), (1, 2)])
def test_groups_that_do_not_fit_get_a_table_of_their_own(width: int, tables: int) -> None:
    made = fitted(LINES, [SIZE], GROUPS, width)
    assert len(made) == tables
    assert all(table.columns[0] is SIZE for table in made)
    assert sum(len(table.columns) - 1 for table in made) == 4


def test_a_column_without_a_heading_sees_all_rows_of_the_line() -> None:
    count = RowColumn(TableColumn("rows"), lambda rows: str(len(rows)))
    assert RowTable(LINES, [count]).drawn.text(Terminal(None)).split() == ["rows", "2", "1"]
