"""A table of rows of results: which rows stand in a line, and what each column shows of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from commbench.core.terminal import GAP, TableColumn
from commbench.core.units import Unit
from commbench.results.row import Row

from .quantities import Quantity, value_text, width_text
from .table import Table

# the rows of a line, by the heading below which they stand
Line = Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class RowColumn:
    """`text`: what stands in a line, of its rows below the heading `of`, or of all of them."""

    head: TableColumn
    text: Callable[[Sequence[Row]], str]
    of: str | None = None

    def cell(self, line: Line) -> str:
        rows = [*chain(*line.values())] if self.of is None else line.get(self.of, ())
        return self.text(rows)


@dataclass(frozen=True)
class RowTable:
    """Lines of rows, and columns that show them."""

    lines: Sequence[Line]
    columns: Sequence[RowColumn]
    title: str = ""

    @property
    def drawn(self) -> Table:
        """A line with a row that is not ok is red."""
        rows = [[column.cell(line) for column in self.columns] for line in self.lines]
        colors = {
            number: "red"
            for number, line in enumerate(self.lines)
            if any(row.status != "ok" for row in chain(*line.values()))
        }
        return Table([column.head for column in self.columns], rows, self.title, colors)

    @property
    def width(self) -> int:
        """Of its text, with a gap after each column."""
        drawn = self.drawn
        columns = zip(drawn.heads, *drawn.rows, strict=True)
        return sum(max(map(len, texts)) + GAP for texts in columns)


def lines_of(
    rows: Iterable[Row],
    line_of: Callable[[Row], Hashable],
    heading_of: Callable[[Row], str] = lambda row: "",
) -> list[dict[str, list[Row]]]:
    """The rows in lines, both in their order."""
    lines = dict[Hashable, dict[str, list[Row]]]()
    for row in rows:
        lines.setdefault(line_of(row), {}).setdefault(heading_of(row), []).append(row)
    return [*lines.values()]


def row_column(head: TableColumn, text: Callable[[Row], str]) -> RowColumn:
    """Of tables with one row in each line."""
    return RowColumn(head, lambda rows: text(rows[0]))


def number_columns(
    name: str, quantity: Quantity, unit: Unit, of: str | None = None, style: str = ""
) -> list[RowColumn]:
    """The numbers, and beside them how certain they are."""
    return [
        value_column(name, quantity, unit, of, style),
        RowColumn(TableColumn("±"), lambda rows: width_text(rows, quantity), of),
    ]


def value_column(
    name: str, quantity: Quantity, unit: Unit, of: str | None = None, style: str = ""
) -> RowColumn:
    head = TableColumn(name, right=True, style=style)
    return RowColumn(head, lambda rows: value_text(rows, quantity, unit), of)


def fitted(
    lines: Sequence[Line],
    leading: Sequence[RowColumn],
    groups: Sequence[Sequence[RowColumn]],
    width: int,
) -> list[RowTable]:
    """Tables with as many groups of columns as fit, at least one, behind the leading columns."""
    tables = []
    columns = [*leading]
    for group in groups:
        wider = RowTable(lines, [*columns, *group])
        if len(columns) > len(leading) and wider.width > width:
            tables.append(RowTable(lines, columns))
            wider = RowTable(lines, [*leading, *group])
        columns = [*wider.columns]
    return [*tables, RowTable(lines, columns)]
