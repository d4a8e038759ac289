"""The columns of nccl-tests on stdout; comments say what stands in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from commbench.results.row import Row

from .table import Listing, comment, flag_lines, number, status_line

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
NCCL_TESTS_TYPES = {"float64": "double", "float32": "float", "float16": "half"}
LINE = ("reduction", "root", "message_bytes", "elements")  # what both halves of a line share
HEADS = ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
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
        widths = (WIDTHS[0] - 1, *WIDTHS[1:], *HALF_WIDTHS * 2)
        lines = [
            f"#{line}".rstrip()
            for line in (above, _aligned(HEADS, widths), _aligned(UNITS, widths))
        ]
        for _, group in groupby(table, key=lambda row: [getattr(row, name) for name in LINE]):
            measured: dict[bool, Row] = {}
            lost = []
            for row in group:
                # one buffer is both: a broadcast has no other form here
                in_place = row.in_place is not False
                if row.status == "ok":
                    measured[in_place] = row
                else:
                    lost.append(status_line(row, ", in place" if in_place else ", out of place"))
            if measured:
                first = next(iter(measured.values()))
                root = -1 if first.root is None else first.root
                kind = NCCL_TESTS_TYPES.get(first.dtype, first.dtype)
                texts = (
                    first.message_bytes,
                    first.elements,
                    kind,
                    first.reduction or "none",
                    root,
                )
                shared = _aligned(list(map(str, texts)), WIDTHS)
                lines.append(shared + _half(measured.get(False)) + _half(measured.get(True)))
            lines += lost
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


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f" {text:>{width - 1}}" for text, width in zip(texts, widths, strict=True))


def _half(row: Row | None) -> str:
    if row is None:
        return _aligned(["N/A"] * len(HALF_WIDTHS), HALF_WIDTHS)
    numbers = (
        row.median_s and row.median_s * 1e6,
        row.algbw_gb_per_s,
        row.busbw_gb_per_s,
    )
    return _aligned([*map(number, numbers), str(row.wrong_elements)], HALF_WIDTHS)
