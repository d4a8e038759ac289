"""The columns of nccl-tests on stdout; comments say what stands in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from commbench.core.terminal import TableColumn
from commbench.report.row_table import RowColumn, RowTable, lines_of
from commbench.report.table import Table
from commbench.results.row import Row

from .listing import Listing, comment, flag_lines, number, status_line

NCCL_TESTS_PROGRAMS = {
    "all_gather": "all_gather_perf",
    "all_reduce": "all_reduce_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "gather": "gather_perf",
    "reduce": "reduce_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "scatter": "scatter_perf",
}
# the others have the same names
NCCL_TESTS_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
LINE = ("reduction", "root", "message_bytes", "elements")  # what both halves of a line share
OUT_OF_PLACE, IN_PLACE = "out of place", "in place"
NOT_MEASURED = "N/A"
UNITS = ("(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2)
WIDTHS = (12, 12, 8, 6, 6)
HALF_WIDTHS = (10, 10, 10, 7)
COLUMN_MEANINGS = (
    (
        "time: median_s, the time of a call by the clock of timer, in each repetition that of"
        " the slowest rank; algbw, busbw: algbw_gb_per_s, busbw_gb_per_s, both from median_s;"
        " #wrong: wrong_elements"
    ),
    (
        "nccl-tests' time is by default the mean of calls enqueued back to back, averaged over"
        " ranks: timer=throughput is nearest to it, other timers give more; N/A: not"
        " measured, or without a meaning"
    ),
    (
        "size, count: message_bytes and the elements of one block, as nccl-tests counts them; a"
        " broadcast has one buffer and stands in place"
    ),
)
MEAN_OF_RATES = (
    "the average is the arithmetic mean of the busbw above, as nccl-tests prints it, for scripts"
    " that read it; a mean of rates over sizes is no result: compare size by size"
)


@dataclass
class NcclTests(Listing):
    tool = "nccl-tests"
    programs = NCCL_TESTS_PROGRAMS
    varying = ("reduction", "root", "in_place")

    def notes(self, rows: Sequence[Row]) -> list[str]:
        return list(COLUMN_MEANINGS) if rows else []

    def table_lines(self, table: Sequence[Row], explained: bool) -> list[str]:
        """A table with its closing lines, as one program of nccl-tests prints them."""
        half = sum(HALF_WIDTHS)
        above = " " * (sum(WIDTHS) - 1) + f"{'out-of-place':^{half}}{'in-place':^{half}}"
        columns = [column.head for column in COLUMNS]
        heads = Table(columns, [[column.heading for column in columns], UNITS])
        widths = (*WIDTHS, *HALF_WIDTHS * 2)
        lines = [f"#{line}".rstrip() for line in (above, *(row[1:] for row in heads.fixed(widths)))]
        alike = lines_of(table, lambda row: tuple(getattr(row, name) for name in LINE), _half_of)
        for line, text in zip(alike, RowTable(alike, COLUMNS).drawn.fixed(widths), strict=True):
            lost = [row for row in chain(*line.values()) if row.status != "ok"]
            lines += [text] if len(lost) < sum(map(len, line.values())) else []
            lines += [status_line(row, f", {_half_of(row)}") for row in lost]
        wrong = sum(row.wrong_elements or 0 for row in table)
        rates = [
            row.busbw_gb_per_s
            for row in table
            if row.status == "ok" and row.busbw_gb_per_s is not None
        ]
        mean = f"{sum(rates) / len(rates):.6g}" if rates else "N/A"
        verdict = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
        return [
            *lines,
            *flag_lines(table),
            verdict,
            comment(MEAN_OF_RATES),
            f"# Avg bus bandwidth    : {mean}",
        ]


def _half_of(row: Row) -> str:
    """One buffer is both: a broadcast has no other form here."""
    return OUT_OF_PLACE if row.in_place is False else IN_PLACE


def _column(name: str, text: Callable[[Row], object], half: str | None = None) -> RowColumn:
    """Of the measured row of a half, or of either."""

    def shown(rows: Sequence[Row]) -> str:
        measured = [row for row in rows if row.status == "ok"]
        return str(text(measured[0])) if measured else NOT_MEASURED

    return RowColumn(TableColumn(name, right=True), shown, half)


def _wrong(row: Row) -> object:
    """Another tool may not have checked."""
    return NOT_MEASURED if row.wrong_elements is None else row.wrong_elements


def _half(half: str) -> list[RowColumn]:
    return [
        _column("time", lambda row: number(row.median_s and row.median_s * 1e6), half),
        _column("algbw", lambda row: number(row.algbw_gb_per_s), half),
        _column("busbw", lambda row: number(row.busbw_gb_per_s), half),
        _column("#wrong", _wrong, half),
    ]


COLUMNS = (
    _column("size", lambda row: row.message_bytes),
    _column("count", lambda row: row.elements),
    _column("type", lambda row: NCCL_TESTS_TYPES.get(row.dtype, row.dtype)),
    _column("redop", lambda row: row.reduction or "none"),
    _column("root", lambda row: -1 if row.root is None else row.root),
    *_half(OUT_OF_PLACE),
    *_half(IN_PLACE),
)
