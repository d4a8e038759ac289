"""Tables of numbers on the page: sizes down, what distinguishes across; and every distinct case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from commbench.core.units import format_rate, format_seconds, plural

from .recommend import Choice, interval_text, size_text

Row = Mapping[str, Any]

MOST_SIZES, MOST_COLUMNS, MOST_OPEN = 20, 6, 3
RATED = ("bandwidth", "copy")  # in the names of benchmarks whose answer is a rate


class Cell(NamedTuple):
    """A number, and its interval for the attribute `title`."""

    text: str
    tip: str


class NumberTable(NamedTuple):
    """The times of a benchmark. `shared`: the one name, or empty; `folded`: why it is not open, else empty."""

    benchmark: str
    shared: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    folded: str


def number_tables(choice: Choice) -> list[NumberTable]:
    """One per benchmark; a table that is large, or beyond MOST_OPEN, is folded."""
    return [
        _number_table(choice, benchmark, lines, number < MOST_OPEN)
        for number, (benchmark, lines) in enumerate(choice.lines().items())
    ]


def _number_table(choice: Choice, benchmark: str, lines: Mapping[str, Sequence[Row]], is_open: bool) -> NumberTable:
    short = choice.short_names(lines)
    names = sorted(lines, key=lambda name: short[name])
    sizes = sorted({row["message_bytes"] or 0 for rows in lines.values() for row in rows})
    rated = any(word in benchmark for word in RATED)
    rows = [
        (
            size_text(size) if size else "no message",
            [_cell([row for row in lines[name] if (row["message_bytes"] or 0) == size], rated) for name in names],
        )
        for size in sizes
    ]
    small = len(sizes) <= MOST_SIZES and len(names) <= MOST_COLUMNS
    extent = f"{plural(len(sizes), 'size', 'sizes')}, {plural(len(names), 'column', 'columns')}"
    shared, heads = (names[0], ["time"]) if len(names) == 1 else ("", [short[name] for name in names])
    return NumberTable(benchmark, shared, heads, rows, "" if small and is_open else extent)


def _cell(rows: Sequence[Row], rated: bool) -> Cell:
    """Of several windows one after another."""
    texts = [
        format_seconds(row["median_s"]) + (f", {format_rate(row['algbw_gb_per_s'])} GB/s" if rated else "")
        for row in rows
    ]
    tips = [interval_text(row["ci_low_s"], row["ci_high_s"]) for row in rows]
    return Cell(" / ".join(texts) or "-", " / ".join(tips))


def by_variables(choice: Choice, row: Row) -> tuple[str, str, str, str, int]:
    """The order of distinct cases: benchmark, backend, layout, other variables, size."""
    others = choice.name(row, without=("pair", "window"))
    return row["benchmark"], row["backend"], row["layout"], others, row["message_bytes"] or 0
