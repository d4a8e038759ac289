"""The numbers of the page: a line for each benchmark, and tables by size in which all numbers have
one unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from commbench.analysis.combined import CombinedCases
from commbench.analysis.fit import by_window
from commbench.core.states import Row
from commbench.core.texts import interval_text, limit_text, microseconds_text, size_text
from commbench.core.units import format_number, natural_key, plural
from commbench.results.columns import interval_ends, level_mark, level_of
from commbench.results.flags import DOUBT_MARK, doubts_of

MOST_SIZES = 20
MOST_COLUMNS = 6
MOST_OPEN = 3  # benchmarks whose tables are not folded
MOST_NAMES = 6  # in a line, of each size

NumberColumn = Literal["median_s", "algbw_gb_per_s", "busbw_gb_per_s", "efficiency"]
RATE_NAMES: Mapping[NumberColumn, str] = {"algbw_gb_per_s": "algbw", "busbw_gb_per_s": "busbw"}
NUMBER_UNITS: Mapping[NumberColumn, str] = {
    "median_s": "us",
    "algbw_gb_per_s": "GB/s",
    "busbw_gb_per_s": "GB/s",
}


class QuotedNumber(NamedTuple):
    """A number in the unit of its table, its interval, the level of that where it is below the one
    that the page names, and the flags that cast doubt on it."""

    text: str
    interval: str
    lower_level: str
    doubts: str

    @property
    def shown(self) -> str:
        """The number; where it is in doubt with a mark and its interval."""
        return f"{self.text} {DOUBT_MARK} ({self.tip})" if self.doubts else self.text

    @property
    def tip(self) -> str:
        """`1903 .. 2364 at 75 %`."""
        return f"{self.interval} at {self.lower_level}" if self.lower_level else self.interval


class NamedNumber(NamedTuple):
    """The number of a backend, layout, ...; `text` has its unit."""

    name: str
    text: str
    doubts: str


class SizeNumbers(NamedTuple):
    """The numbers of one size, the best first; `more`: how many are not shown."""

    size: str
    numbers: Sequence[NamedNumber]
    more: int


class BenchmarkLine(NamedTuple):
    """p2p_latency, and its numbers at the smallest and at the largest size."""

    benchmark: str
    sizes: Sequence[SizeNumbers]


class NumberTable(NamedTuple):
    """Numbers of one unit: sizes down, lines across; a cell has a number for each window."""

    unit: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Sequence[QuotedNumber]]]]


@dataclass(frozen=True)
class BenchmarkNumbers:
    """The tables of a benchmark. `shared`: the one name, or empty; `folded`: why they are not open,
    else empty; `limit`: what it is, or empty."""

    benchmark: str
    shared: str
    tables: Sequence[NumberTable]
    limit: str
    folded: str


def value_and_interval(row: Row, column: NumberColumn) -> tuple[float, float, float]:
    """A value with its interval; that of a rate follows from that of the time."""
    value = row[column]
    if value is None:
        return math.nan, math.nan, math.nan
    return float(value), *(interval_ends(row, column) or (math.nan, math.nan))


def rate_column(rows: Sequence[Row]) -> NumberColumn:
    """The rate that a benchmark is quoted by: of a collective the bus bandwidth."""
    is_collective = not any(row["pair"] for row in rows)
    if is_collective and any(row["busbw_gb_per_s"] for row in rows):
        return "busbw_gb_per_s"
    return "algbw_gb_per_s"


def _quoted_columns(benchmark: str, rows: Sequence[Row]) -> tuple[NumberColumn, ...]:
    """What people quote: of a bandwidth the rate, of a latency the time, of a collective both."""
    rate = rate_column(rows)
    if "bandwidth" in benchmark or "copy" in benchmark:
        return (rate,)
    has_rate = rate == "busbw_gb_per_s"
    return ("median_s", rate) if has_rate else ("median_s",)


def _quoted_number(row: Row, column: NumberColumn, level: float) -> QuotedNumber:
    """The number of a row, `level`: that of the intervals of its table."""
    text = microseconds_text if column == "median_s" else format_number
    value, low, high = value_and_interval(row, column)
    interval = interval_text(low, high, text)
    lower_level = level_mark(level_of(row), level) if math.isfinite(low) else ""
    return QuotedNumber(
        "-" if math.isnan(value) else text(value),
        interval,
        lower_level.strip(" ()"),
        _doubts_text(row),
    )


def _doubts_text(row: Row) -> str:
    return ", ".join(sorted(doubts_of(row)))


class NamedLines(NamedTuple):
    """The lines of a benchmark: name -> rows by size, and name -> short name."""

    benchmark: str
    rows: Mapping[str, Sequence[Row]]
    short: Mapping[str, str]


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
    return sorted(rows, key=lambda row: int(row["message_bytes"] or 0))


# ---------------------------------------------------------------- a line for each benchmark


def benchmark_lines(combined: CombinedCases) -> list[BenchmarkLine]:
    """`p2p_latency 8 B: mpi 0.21 us, gloo 103 us; 4 MiB: ...` of each benchmark."""
    lines = []
    for benchmark, rows_of_line, short in lines_by_window(combined):
        named = [(short[name], row) for name, rows in rows_of_line.items() for row in rows]
        every = [row for _, row in named]
        columns = _quoted_columns(benchmark, every)
        sizes = [row["message_bytes"] or 0 for row in every]
        # of a collective the time of the smallest and the rate of the largest message
        ends = dict.fromkeys([(min(sizes), columns[0]), (max(sizes), columns[-1])])
        shown = [
            _of_size(size, column, named, combined.level)
            for size, column in ends
            if size or column == "median_s"
        ]
        lines.append(BenchmarkLine(benchmark, shown))
    return lines


def _of_size(
    size: int, column: NumberColumn, named: Sequence[tuple[str, Row]], level: float
) -> SizeNumbers:
    of_size = [
        (name, row)
        for name, row in named
        if (row["message_bytes"] or 0) == size and row[column] is not None
    ]
    of_size.sort(key=lambda pair: float(pair[1][column]), reverse=column != "median_s")
    numbers = [
        NamedNumber(name, _with_unit(_quoted_number(row, column, level), column), _doubts_text(row))
        for name, row in of_size[:MOST_NAMES]
    ]
    return SizeNumbers(size_text(size) if size else "", numbers, max(0, len(of_size) - MOST_NAMES))


def _with_unit(number: QuotedNumber, column: NumberColumn) -> str:
    """`103 us`, in doubt `103 us ! (98.1 .. 120)`; a bus bandwidth is called one."""
    kind = " busbw" if column == "busbw_gb_per_s" else ""
    text = f"{number.text} {NUMBER_UNITS[column]}{kind}"
    return number._replace(text=text).shown


# ---------------------------------------------------------------- tables by size


def number_tables(combined: CombinedCases) -> Iterator[BenchmarkNumbers]:
    """The tables of each benchmark; those that are large, or beyond MOST_OPEN, are folded."""
    for position, (benchmark, lines, short) in enumerate(lines_by_window(combined)):
        names = sorted(lines, key=lambda name: natural_key(short[name]))
        sizes = sorted({row["message_bytes"] or 0 for rows in lines.values() for row in rows})
        every = [row for rows in lines.values() for row in rows]
        is_single = len(names) == 1
        tables = []
        for column in _quoted_columns(benchmark, every):
            kind = RATE_NAMES.get(column, "median")
            heads = [kind] if is_single else [short[name] for name in names]
            rows = [
                (
                    size_text(size) if size else "no message",
                    [_cell(lines[name], size, column, combined.level) for name in names],
                )
                for size in sizes
            ]
            tables.append(NumberTable(f"{kind} in {NUMBER_UNITS[column]}", heads, rows))
        is_small = len(sizes) <= MOST_SIZES and len(names) <= MOST_COLUMNS
        extent = f"{plural(len(sizes), 'size', 'sizes')}, {plural(len(names), 'column', 'columns')}"
        yield BenchmarkNumbers(
            benchmark,
            names[0] if is_single else "",
            tables,
            limit_text(every),
            "" if is_small and position < MOST_OPEN else extent,
        )


def _cell(rows: Sequence[Row], size: int, column: NumberColumn, level: float) -> list[QuotedNumber]:
    return [
        _quoted_number(row, column, level) for row in rows if (row["message_bytes"] or 0) == size
    ]


# heading -> cell, of the table of all cases
CASE_NUMBERS: Mapping[str, Callable[[Row, float], str]] = {
    "median us": lambda row, level: _quoted_number(row, "median_s", level).text,
    "interval us": lambda row, level: _quoted_number(row, "median_s", level).tip,
    "algbw GB/s": lambda row, level: format_number(row["algbw_gb_per_s"]),
    "busbw GB/s": lambda row, level: format_number(row["busbw_gb_per_s"]),
    "limit GB/s": lambda row, level: format_number(row["limit_gb_per_s"]),
    "in doubt": lambda row, level: _doubts_text(row),
}
