"""The numbers of the page: the headline of each benchmark, and tables by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from commbench.analysis.best import THIS_RUN, Best
from commbench.analysis.combined import CombinedCases
from commbench.analysis.combined_row import Combined
from commbench.analysis.families import by_window
from commbench.core.terminal import TableColumn
from commbench.core.texts import message_text
from commbench.core.units import NO_NUMBER, Unit, natural_key, plural
from commbench.results.columns import grouped
from commbench.results.row import Row

from .quantities import MEDIAN, Quantity, in_full, limit_text, number_of, quoted, text_with_unit
from .row_table import RowColumn, RowTable, row_column
from .section import Section
from .table import Table

MOST_SIZES = 20
MOST_COLUMNS = 6
MOST_OPEN = 3  # benchmarks whose tables are not folded


class NamedLines(NamedTuple):
    """The lines of a benchmark: name -> rows by size, and name -> short name."""

    benchmark: str
    rows: Mapping[str, Sequence[Combined]]
    short: Mapping[str, str]

    @property
    def every(self) -> list[Combined]:
        return [row for rows in self.rows.values() for row in rows]


def lines_by_window(combined: CombinedCases) -> Iterator[NamedLines]:
    """The lines of each benchmark. Where a size was measured with several windows, each window has
    a line; a window that shrinks as sizes grow has none."""
    for benchmark, lines in combined.lines().items():
        short = combined.short_names(lines)
        apart = dict[str, Sequence[Combined]]()
        names = dict[str, str]()
        for name, rows in lines.items():
            is_repeated = len({row.message_bytes for row in rows}) < len(rows)
            groups = by_window(rows) if is_repeated else [(None, rows)]
            groups.sort(key=lambda group: group[0] or 0)
            for window, of_window in groups:
                more = f" window {window}" if len(groups) > 1 else ""
                names[name + more] = short[name] + more
                apart[name + more] = sorted(of_window, key=lambda row: row.message_bytes)
        yield NamedLines(benchmark, apart, names)


class _HeadlineRow(NamedTuple):
    """`cells`: column -> number; `fastest` is empty where there is no choice."""

    operation: str
    message: str
    cells: Mapping[str, str]
    fastest: str


def headline_table(combined: CombinedCases) -> Table:
    """The first and the last size of each benchmark: a column for each line, and the fastest.

    Where there are more than MOST_COLUMNS lines, the columns are the backends, each with its best
    line among as many ranks; of operations within each node the median node.
    """
    benchmarks = list(lines_by_window(combined))
    by_backend = len({name for each in benchmarks for name in each.short.values()}) > MOST_COLUMNS
    rows = list(
        chain.from_iterable(_headline_rows(each, combined, by_backend) for each in benchmarks)
    )
    columns = sorted({name for row in rows for name in row.cells}, key=natural_key)
    few = any(best.of_this_run for best in combined.best)
    last = [f"fastest {THIS_RUN}" if few else "fastest"] if combined.best else []
    cells = [
        (
            row.operation,
            row.message,
            *(row.cells.get(name, NO_NUMBER) for name in columns),
            *([row.fastest or NO_NUMBER] if last else []),
        )
        for row in rows
    ]
    return Table.of(["operation", "message", *columns, *last], cells)


def _headline_rows(
    lines: NamedLines, combined: CombinedCases, by_backend: bool
) -> Iterator[_HeadlineRow]:
    named = [(lines.short[name], row) for name, rows in lines.rows.items() for row in rows]
    if not by_backend:
        yield from _ends(lines.benchmark, named, combined.best)
        return
    backends = [(row.backend, row) for _, row in named]
    whole = [each for each in backends if each[1].node is None]
    worlds = grouped(whole, lambda each: each[1].world_size or 0)
    for ranks, own in sorted(worlds.items()):
        compared = [best for best in combined.best if best.shared.world_size == ranks]
        yield from _ends(lines.benchmark, own, compared, f" on {plural(ranks, 'rank', 'ranks')}")
    within = [each for each in backends if each[1].node is not None]
    if within:
        yield from _ends(lines.benchmark, _median_nodes(within), (), " within the median node")


def _median_nodes(named: Sequence[tuple[str, Combined]]) -> list[tuple[str, Combined]]:
    """Of each backend and size the node that takes the median time: nodes are no alternatives."""
    alike = grouped(named, lambda each: (each[0], each[1].message_bytes))
    return [
        sorted(nodes, key=lambda each: each[1].median_s)[len(nodes) // 2]
        for nodes in alike.values()
    ]


def _ends(
    benchmark: str, named: Sequence[tuple[str, Combined]], compared: Sequence[Best], where: str = ""
) -> Iterator[_HeadlineRow]:
    """The smallest and the largest message; of a collective its time, then its rate."""
    every = [row for _, row in named]
    sizes = [row.message_bytes for row in every]
    shown = quoted(every)
    for size, quantity in dict.fromkeys([(min(sizes), shown[0]), (max(sizes), shown[-1])]):
        at_size = [each for each in named if each[1].message_bytes == size and quantity.of(each[1])]
        # of several in a column, the best comes last and stays
        at_size.sort(key=lambda each: getattr(each[1], quantity.column), reverse=quantity is MEDIAN)
        beside = [row for _, row in at_size]
        cells = {name: text_with_unit(row, quantity, beside) for name, row in at_size}
        fastest = {
            best.best
            for best in compared
            if (best.shared.benchmark, best.message_bytes) == (benchmark, size)
        }
        if cells:
            text = ", ".join(sorted(fastest))
            yield _HeadlineRow(f"{benchmark}{where}", message_text(size), cells, text)


def number_sections(combined: CombinedCases) -> Iterator[Section]:
    """The tables of each benchmark, sizes down and lines across; those that are large, or beyond
    MOST_OPEN, are folded."""
    for position, lines in enumerate(lines_by_window(combined)):
        names = sorted(lines.rows, key=lambda name: natural_key(lines.short[name]))
        tables = [_table_of(lines, names, quantity) for quantity in in_full(lines.every)]
        is_small = len(tables[0].lines) <= MOST_SIZES and len(names) <= MOST_COLUMNS
        limit = limit_text(lines.every)
        yield Section(
            f"{lines.benchmark} in numbers",
            tables=[table.drawn for table in tables],
            notes=[f"{limit[:1].upper()}{limit[1:]}."] if limit else (),
            is_folded=not is_small or position >= MOST_OPEN,
            is_on_terminal=False,
        )


def _table_of(lines: NamedLines, names: Sequence[str], quantity: Quantity) -> RowTable:
    """Sizes down, lines across."""
    unit = quantity.unit(lines.every)
    cell = partial(_cell, quantity=quantity, unit=unit)
    size = row_column(TableColumn("size"), lambda row: message_text(row.message_bytes))
    across = [RowColumn(TableColumn(lines.short[name]), cell, name) for name in names]
    by_size = [
        {name: [row for row in lines.rows[name] if row.message_bytes == size] for name in names}
        for size in sorted({row.message_bytes for row in lines.every})
    ]
    return RowTable(by_size, [size, *across], f"{quantity.name} in {unit.name}")


def _cell(rows: Sequence[Row], quantity: Quantity, unit: Unit) -> str:
    """`~165 ±20%`"""
    number = number_of(rows, quantity)
    return NO_NUMBER if number is None else number.text(unit.text)
