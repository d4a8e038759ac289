"""The numbers of the page: a line for each benchmark, and tables by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from commbench.analysis.combined import CombinedCases
from commbench.analysis.fit import by_window
from commbench.core.states import Row
from commbench.core.texts import limit_text, message_text, size_text, some_of
from commbench.core.units import NO_NUMBER, Unit, natural_key

from .quantities import MEDIAN, Quantity, in_full, quoted, text_with_unit
from .section import Section, Table

MOST_SIZES = 20
MOST_COLUMNS = 6
MOST_OPEN = 3  # benchmarks whose tables are not folded
MOST_NAMES = 6  # in a line, of each size


class NamedLines(NamedTuple):
    """The lines of a benchmark: name -> rows by size, and name -> short name."""

    benchmark: str
    rows: Mapping[str, Sequence[Row]]
    short: Mapping[str, str]

    @property
    def every(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]


def lines_by_window(combined: CombinedCases) -> Iterator[NamedLines]:
    """The lines of each benchmark; windows that were measured at the same size are lines of their
    own, one that shrinks with the size is none."""
    for benchmark, lines in combined.lines().items():
        short = combined.short_names(lines)
        apart: dict[str, Sequence[Row]] = {}
        names: dict[str, str] = {}
        for name, rows in lines.items():
            is_repeated = len({row["message_bytes"] for row in rows}) < len(rows)
            groups = by_window(rows) if is_repeated else [(None, rows)]
            groups.sort(key=lambda group: group[0] or 0)
            for window, of_window in groups:
                more = f" window {window}" if len(groups) > 1 else ""
                names[name + more] = short[name] + more
                apart[name + more] = _by_size(of_window)
        yield NamedLines(benchmark, apart, names)


def _by_size(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=_bytes)


def _bytes(row: Row) -> int:
    return int(row["message_bytes"] or 0)


def benchmark_lines(combined: CombinedCases) -> Iterator[str]:
    """`p2p_latency 8 B: mpi 0.21 us ±2%, gloo ~103 us ±12%; 4 MiB: ...` of each benchmark."""
    for lines in lines_by_window(combined):
        every = lines.every
        shown = quoted(every)
        sizes = list(map(_bytes, every))
        # of a collective the time of the smallest and the rate of the largest message
        ends = dict.fromkeys([(min(sizes), shown[0]), (max(sizes), shown[-1])])
        texts = [
            _of_size(lines, size, quantity) for size, quantity in ends if size or quantity is MEDIAN
        ]
        yield f"{lines.benchmark} {'; '.join(texts)}"


def _of_size(lines: NamedLines, size: int, quantity: Quantity) -> str:
    """The numbers of one size, the best first."""
    named = [
        (lines.short[name], row)
        for name, rows in lines.rows.items()
        for row in rows
        if _bytes(row) == size and row[quantity.column] is not None
    ]
    named.sort(key=lambda pair: float(pair[1][quantity.column]), reverse=quantity is not MEDIAN)
    texts = [f"{name} {text_with_unit(row, quantity)}" for name, row in named]
    of_size = f"{size_text(size)}: " if size else ""
    return of_size + ", ".join(some_of(texts, MOST_NAMES))


def number_sections(combined: CombinedCases) -> Iterator[Section]:
    """The tables of each benchmark, sizes down and lines across; those that are large, or beyond
    MOST_OPEN, are folded."""
    for position, lines in enumerate(lines_by_window(combined)):
        names = sorted(lines.rows, key=lambda name: natural_key(lines.short[name]))
        sizes = sorted(set(map(_bytes, lines.every)))
        heads = [lines.short[name] for name in names]
        tables = []
        for quantity in in_full(lines.every):
            unit = quantity.unit(lines.every)
            rows = [
                (
                    message_text(size),
                    *(_cell(lines.rows[name], size, quantity, unit) for name in names),
                )
                for size in sizes
            ]
            tables.append(Table(["size", *heads], rows, f"{quantity.name} in {unit.name}"))
        is_small = len(sizes) <= MOST_SIZES and len(names) <= MOST_COLUMNS
        limit = limit_text(lines.every)
        yield Section(
            f"{lines.benchmark} in numbers",
            tables=tables,
            notes=[f"{limit[:1].upper()}{limit[1:]}."] if limit else (),
            is_folded=not is_small or position >= MOST_OPEN,
            is_on_terminal=False,
        )


def _cell(rows: Sequence[Row], size: int, quantity: Quantity, unit: Unit) -> str:
    """`~165 ±20%`; of several windows each."""
    intervals = [quantity.of(row) for row in rows if _bytes(row) == size]
    texts = [interval.text(unit.text) for interval in intervals if interval is not None]
    return " / ".join(texts) or NO_NUMBER
