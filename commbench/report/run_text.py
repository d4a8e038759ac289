"""The text of a run: title, tables of its cases, and below them what they do not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from commbench.analysis.case_names import differing
from commbench.analysis.pairs.judgement import JudgedMatrix, judged_matrices
from commbench.core.terminal import TableColumn, Terminal
from commbench.core.units import NO_NUMBER, format_bytes, format_number
from commbench.core.variables import SHOWN, is_number
from commbench.results.columns import row_order
from commbench.results.flags import shared_flags
from commbench.results.row import Row

from .footnotes import footnotes
from .pair_matrix import finding_lines, is_matrix, matrix_text
from .quantities import (
    ALGBW,
    BUSBW,
    MEDIAN,
    has_bandwidth,
    has_several_pairs,
    is_collective,
    is_measured,
    value_text,
)
from .row_table import RowColumn, RowTable, number_columns, row_column
from .run_heading import CONSTANT, PATHS, heading, variable_text
from .showing import TextsBelow, derived_tables, is_apart, new_texts

# columns: a run has one device, and a table one timer
SHOWN_VARIABLES = tuple(name for name in (*SHOWN, *PATHS) if name not in ("device", "timer"))
LEAST_PERCENT = 1.0  # of a limit: below, latency decides and the share says nothing
CLOCKS = {
    "host": "the host's clock around the calls",
    "host_sync": (
        "the host's clock around calls and synchronisation: the time until the host has the result"
    ),
    "device_event": "the GPU's events around isolated calls: without the launch",
    "throughput": "the GPU's events around calls that follow one another without a wait",
    "graph": "the GPU's events around the replay of a captured graph of calls",
}


def run_text(
    run: Mapping[str, Any],
    rows: Sequence[Row],
    terminal: Terminal,
    texts: Sequence[TextsBelow] = (),
    *,
    tables: bool = True,
    foot: bool = True,
    flags: bool = False,
    intervals: bool = False,
) -> str:
    """Title, what made the numbers uncertain, tables, matrices of many pairs; below them, with
    `foot`, what the numbers are, why a case has none, and with `flags` what each flag means; slow
    or asymmetric pairs."""
    varying = differing(rows, dict.fromkeys((*SHOWN_VARIABLES, *CONSTANT)))
    parts = heading(run, rows, varying, terminal, causes=tables)
    if not rows:
        return "\n".join([*parts, "no case is finished\n"])
    ordered = sorted(rows, key=row_order)
    all_matrices = judged_matrices(ordered)
    shown_matrices = [matrix for matrix in all_matrices if is_matrix(matrix)]
    in_matrix = {id(row) for matrix in shown_matrices for row in matrix.rows.values()}
    listed = [row for row in ordered if id(row) not in in_matrix]
    if tables:
        parts += _tables(listed, shown_matrices, varying, terminal)
    if foot:
        parts += footnotes(run, rows, listed, varying, terminal, numbers=tables, flags=flags)
    # what is apart has its lines at the end of a sweep
    own = [row for row in ordered if tables or not is_apart(row)]
    below = (
        *(each.text(terminal) for each in derived_tables(rows)),
        *(
            text
            for each in texts or new_texts()
            for text in each.below(run, own, terminal, intervals)
        ),
    )
    parts += [f"\n{text}" for text in below if text]
    return "\n".join([*parts, *finding_lines(run, all_matrices, terminal)]) + "\n"


def _tables(
    listed: Sequence[Row],
    shown_matrices: Sequence[JudgedMatrix],
    varying: Sequence[str],
    terminal: Terminal,
) -> Iterator[str]:
    """The table of the listed rows, one for each clock; then the matrices. `varying` are the
    variables in which rows differ."""
    timers = dict.fromkeys(row.timer for row in listed)
    # times of different clocks are never in one table
    for timer in timers if len(timers) > 1 else [None]:
        if timer is not None:
            yield terminal.paragraph(f"timer {timer}: {CLOCKS.get(timer, '')}")
        alike = [row for row in listed if timer in (None, row.timer)]
        if alike or not shown_matrices:
            yield rows_table(alike, varying).drawn.text(terminal)
            if shown_matrices or timer is not None:
                yield ""
    named = [name for name in CONSTANT if name in varying]
    for matrix in shown_matrices:
        yield f"{matrix_text(matrix, named, terminal)}\n"


def rows_table(rows: Sequence[Row], varying: Sequence[str]) -> RowTable:
    """A line for each row: the variables in which rows differ, and what was measured. A narrow
    terminal drops the highest priorities first."""
    names = [name for name in SHOWN_VARIABLES if name == "benchmark" or name in varying]
    columns = [
        *(
            row_column(TableColumn(name, right=is_number(name)), partial(variable_text, name=name))
            for name in names
        ),
        row_column(TableColumn("message", right=True), _message_text),
        *_number_columns(rows),
    ]
    return RowTable([{"": [row]} for row in rows], columns)


def _number_columns(rows: Sequence[Row]) -> list[RowColumn]:
    time = MEDIAN.unit(rows)
    busbw = BUSBW.unit(rows)
    algbw = ALGBW.unit(filter(has_bandwidth, rows))
    are_collectives = all(map(is_collective, rows))
    algbw_name = "algbw" if are_collectives else "bandwidth"
    have_several_pairs = any(map(has_several_pairs, rows))
    repetitions = {row.repetitions for row in rows}
    shared = shared_flags(filter(is_measured, rows))
    n = TableColumn("n", right=True, priority=6)
    return [
        *number_columns(f"time\n{time.name}", MEDIAN, time, style="bold"),
        RowColumn(
            TableColumn(f"busbw\n{busbw.name}", right=True, priority=1),
            lambda rows: value_text([*filter(is_collective, rows)], BUSBW, busbw),
        ),
        RowColumn(
            TableColumn(
                f"{algbw_name}\n{algbw.name}", right=True, priority=5 if are_collectives else 1
            ),
            lambda rows: value_text([*filter(has_bandwidth, rows)], ALGBW, algbw),
        ),
        row_column(
            TableColumn("flags", priority=2),
            lambda row: " ".join(sorted(set(row.warnings) - shared)),
        ),
        row_column(TableColumn("of limit\n%", right=True, priority=3), _share_text),
        row_column(
            TableColumn(f"p99\n{time.name}", right=True, priority=4),
            lambda row: time.text(row.p99_s),
        ),
        *(
            [row_column(n, lambda row: str(row.repetitions or NO_NUMBER))]
            if len(repetitions) > 1 or len(rows) == 1
            else []
        ),
        row_column(
            TableColumn("messages\n1/s", right=True, priority=1 if have_several_pairs else 7),
            _message_rate_text,
        ),
    ]


def _message_text(row: Row) -> str:
    return format_bytes(row.message_bytes) if row.message_bytes else NO_NUMBER


def _share_text(row: Row) -> str:
    share = row.efficiency
    if share is None or 100 * share < LEAST_PERCENT:
        return NO_NUMBER
    return format_number(100 * share)


def _message_rate_text(row: Row) -> str:
    is_shown = has_several_pairs(row) or (row.messages_per_call or 1) > 1
    return format_number(row.message_rate_per_s) if is_shown else NO_NUMBER
