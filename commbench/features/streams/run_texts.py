"""Soaks below the tables of runs: their intervals, and a line for each stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from commbench.analysis.case_names import differing
from commbench.analysis.pairs.judgement import judged_matrices
from commbench.core.terminal import Terminal
from commbench.report.pair_matrix import is_matrix, matrix_text
from commbench.report.showing import Record
from commbench.results.columns import row_order
from commbench.results.row import Row

from .rates import streams_text
from .stored import until_full_speed
from .time_lines import StreamLine, TimeLine, time_line, time_line_texts


class SoakTexts:
    """The time lines of a run, in bounded memory."""

    def __init__(self) -> None:
        self._time_lines: dict[str, TimeLine | StreamLine] = {}

    def add(self, row: Row, counters: Callable[[], Iterable[Record]]) -> None:
        if not row.is_soak:
            return
        line = self._time_lines.setdefault(row.case_id, time_line(row))
        for columns in counters():
            line.add(columns)

    def below(
        self, run: Mapping[str, Any], rows: Sequence[Row], terminal: Terminal, every: bool
    ) -> Iterator[str]:
        yield streams_text(until_full_speed(rows, [run]), terminal)
        yield from time_line_texts(rows, self._time_lines, terminal, every)


def apart_texts(
    rows: Sequence[Row], records: Sequence[Mapping[str, Any]], terminal: Terminal
) -> Iterator[str]:
    """The matrices of all pairs, and a line for each stream."""
    streams = until_full_speed(rows, records)
    for matrix in filter(is_matrix, judged_matrices(streams)):
        yield f"{matrix_text(matrix, differing(streams), terminal)}\n"
    yield streams_text(sorted(streams, key=row_order), terminal)
