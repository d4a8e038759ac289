"""The table of a run on stdout, fitted to the terminal, with its title, and at most three lines
below it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commbench.analysis.case_names import case_names, differing, shown_value
from commbench.analysis.cold_start import until_full_speed
from commbench.analysis.disturbances import disturbances_text
from commbench.analysis.effective_settings import settings_texts
from commbench.analysis.group_gains import GAIN_HEADS, GAIN_MEANING, group_gains
from commbench.analysis.overlaps import (
    OVERLAP_HEADS,
    OVERLAP_MEANING,
    overlap_cells,
    overlap_results,
)
from commbench.analysis.slow_pairs import Matrix, findings_in, matrices, told_once
from commbench.core.layout import Layout
from commbench.core.states import INTERRUPTED, status_of_run
from commbench.core.terminal import TableColumn, Terminal, paragraphs, printable, table_text
from commbench.core.texts import some_of
from commbench.core.units import NO_NUMBER, format_bytes, format_number, plural, short_pairs
from commbench.core.variables import MODEL_ENGINE, SHOWN, is_number, is_usual
from commbench.hardware.torch_install import other_torch_text
from commbench.results.columns import row_order
from commbench.results.flags import binding_text, shared_flags
from commbench.results.intervals import interval_note, marks_note
from commbench.results.row import Row
from commbench.results.run_folder import PARTS, RECORD, exists, record_problem
from commbench.results.writer import Entry
from commbench.runtime.launch import SIDE_BY_SIDE
from commbench.runtime.output import print_draft
from commbench.stats.thresholds import SLOW_FACTOR

from .footnotes import (
    RowsBySeries,
    flag_named,
    legend,
    number_texts,
    reason_texts,
    unfinished_texts,
)
from .quantities import (
    ALGBW,
    BUSBW,
    MEDIAN,
    has_bandwidth,
    has_several_pairs,
    is_collective,
    is_measured,
    value_cell,
    width_cell,
)
from .row_writer import RowWriter
from .section import Table
from .streams import bit_unit, is_stream_soak, streams_text
from .table import backend_text, is_matrix, matrix_text
from .time_lines import StreamLine, TimeLine, time_line

PATHS = ("link", "transport")
CONSTANT = (*(name for name in SHOWN if name != "benchmark"), *PATHS)
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
MOST_FINDINGS = 10
LONG_REST_S = 5.0  # expected after the first pass; a shorter rest needs no table in between
MOST_ROWS_AFTER_SIGNAL = 1000  # of a table that keeps nobody waiting


def _share_text(row: Row) -> str:
    share = row.efficiency
    if share is None or 100 * share < LEAST_PERCENT:
        return NO_NUMBER
    return format_number(100 * share)


def _message_rate_text(row: Row) -> str:
    is_shown = has_several_pairs(row) or (row.messages_per_call or 1) > 1
    return format_number(row.message_rate_per_s) if is_shown else NO_NUMBER


@dataclass
class Console(RowWriter):
    """A Writer that prints the table of the run at its end. On a terminal a first pass that took
    long is shown until then."""

    is_console = True

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        super().begin(run, folder)
        self._run = run
        self._begun_s = time.monotonic()
        self._time_lines: dict[str, TimeLine | StreamLine] = {}

    def cases(self, entries: Sequence[Entry]) -> None:
        first_pass = len(self._rows) < self._run.get("cases", 0)
        super().cases(entries)
        for row, _, counters in entries:
            self._time_lines.setdefault(row.case_id, time_line(row)).add(counters)
        if first_pass and len(self._rows) == self._run["cases"]:
            self._show_first_pass()

    def _show_first_pass(self) -> None:
        """Show the table as it is now, where the user would wait long for the rest."""
        terminal = Terminal.of(sys.stdout)
        waiting = sum(row.stop_reason == INTERRUPTED for row in self._rows.values())
        passes = self._run.get("config", {}).get("timing", {}).get("visits", 1)
        # each pass like the first
        pass_s = (time.monotonic() - self._begun_s) * waiting / len(self._rows)
        if terminal.width is None or (passes - 1) * pass_s < LONG_REST_S:
            return
        rows = [replace(row, stop_reason=None) for row in self._rows.values()]
        text = run_text(self._run, rows, terminal, foot=False)
        print_draft(f"{text}pass 1 of {passes}; further passes over {waiting} cases follow")

    def finish(self, run: Mapping[str, Any], rows: Sequence[Row]) -> None:
        terminal = Terminal.of(sys.stdout)
        tables = SIDE_BY_SIDE not in os.environ
        if status_of_run(run) == "interrupted" and len(rows) > MOST_ROWS_AFTER_SIGNAL:
            print(f"{len(rows)} of {run['cases']} cases have results: commbench show prints them")
        else:
            print(run_text(run, rows, terminal, self._time_lines, tables=tables), end="")
        problem = record_problem(run["folder"])
        # parquet, which ends after this writer, writes a run.json that was removed again
        if exists(Path(run["folder"]) / RECORD) or exists(Path(run["folder"]) / PARTS):
            print(f"results: {printable(str(run['folder']))}", flush=True)
        elif problem is not None:
            print(problem, flush=True)
        else:
            print("not stored; writer=[parquet,console] stores the results", flush=True)


def run_text(
    run: Mapping[str, Any],
    rows: Sequence[Row],
    terminal: Terminal,
    time_lines: Mapping[str, TimeLine | StreamLine] | None = None,
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
    title = terminal.paragraph(_run_title(run, rows, varying))
    if not rows:
        return f"{title}\nno case is finished\n"
    all_matrices = matrices(rows)
    shown_matrices = sorted(
        filter(is_matrix, all_matrices),
        key=lambda matrix: row_order(next(iter(matrix.rows.values()))),
    )
    in_matrix = {id(row) for matrix in shown_matrices for row in matrix.rows.values()}
    listed = sorted((row for row in rows if id(row) not in in_matrix), key=row_order)
    series = _rows_by_series(rows, listed, varying)
    parts = [terminal.styled(title, "bold")]
    parts += [text] if (text := paragraphs(_causes(run, rows) if tables else [], terminal)) else []
    parts += _tables(listed, shown_matrices, varying, terminal) if tables else []
    if foot:
        texts = [
            *reason_texts(series, terminal),
            *unfinished_texts(run, series, len(rows)),
            *_numberings(run, rows),
            *(number_texts(rows) if tables else []),
            *(legend(rows, series) if flags else []),
        ]
        parts += [paragraphs(texts, terminal)] if texts else []
    # the streams of a sweep have one table at its end
    timed = [row for row in sorted(rows, key=row_order) if tables or not is_stream_soak(row)]
    derived = (
        *derived_tables(rows, terminal),
        streams_text(until_full_speed(timed, [run]), terminal),
        *_time_line_texts(timed, time_lines or {}, terminal, intervals),
    )
    parts += [f"\n{text}" for text in derived if text]
    return "\n".join([*parts, *_finding_lines(run, all_matrices, terminal)]) + "\n"


def derived_tables(rows: Sequence[Row], terminal: Terminal) -> Iterator[str]:
    """What follows from the times of several rows, each table with the meaning of its numbers."""
    gains = [gain.cells() for gain in group_gains(rows)]
    for heads, cells, meaning in (
        (OVERLAP_HEADS, overlap_cells(overlap_results(rows)), OVERLAP_MEANING),
        (GAIN_HEADS, gains, GAIN_MEANING),
    ):
        if cells:
            yield f"{Table(heads, cells).text(terminal)}\n{terminal.paragraph(meaning)}"


def _time_line_texts(
    rows: Sequence[Row],
    time_lines: Mapping[str, TimeLine | StreamLine],
    terminal: Terminal,
    every: bool,
) -> list[str]:
    """Those of all soaks, but of several streams only where every interval is asked for: each has
    its line in a table."""
    streams = [row for row in rows if is_stream_soak(row)]
    shows_intervals = every or len(streams) == 1
    ids = [row.case_id for row in rows]
    name_of = dict(zip(ids, case_names(rows), strict=True)) if time_lines else {}
    texts = []
    for case_id, line in time_lines.items():
        name = name_of.get(case_id, case_id)
        if isinstance(line, TimeLine):
            texts.append(line.text(name, terminal))
        elif streams and shows_intervals:
            texts.append(line.text(name, bit_unit(streams), terminal, every))
    if streams and not shows_intervals:
        texts.append("the intervals of each stream: commbench show RUN --intervals")
    return texts


def _tables(
    listed: Sequence[Row],
    shown_matrices: Sequence[Matrix],
    varying: Sequence[str],
    terminal: Terminal,
) -> list[str]:
    """The table of the listed rows, one for each clock; then the matrices. `varying` are the
    variables in which rows differ."""
    parts = []
    timers = dict.fromkeys(row.timer for row in listed)
    # times of different clocks are never in one table
    for timer in timers if len(timers) > 1 else [None]:
        if timer is not None:
            parts.append(terminal.paragraph(f"timer {timer}: {CLOCKS.get(timer, '')}"))
        alike = [row for row in listed if timer in (None, row.timer)]
        if alike or not shown_matrices:
            parts.append(_rows_table(alike, varying, terminal))
            parts += [""] if shown_matrices or timer is not None else []
    named = [name for name in CONSTANT if name in varying]
    for matrix in shown_matrices:
        parts.append(f"{matrix_text(matrix, named, terminal)}\n")
    return parts


def _rows_table(rows: Sequence[Row], varying: Sequence[str], terminal: Terminal) -> str:
    """The rows, without columns that all of them share or that say nothing."""
    names = [name for name in SHOWN_VARIABLES if name == "benchmark" or name in varying]
    columns = [
        *(
            (TableColumn(name, right=is_number(name)), [_variable_text(row, name) for row in rows])
            for name in names
        ),
        *_number_columns(rows),
    ]
    shown = [
        (column, texts)
        for column, texts in columns
        if column.priority == 0 or {*texts} - {"", NO_NUMBER}
    ]
    cells = list(zip(*(texts for _, texts in shown), strict=True))
    styles = {number: "red" for number, row in enumerate(rows) if row.status != "ok"}
    return table_text([column for column, _ in shown], cells, terminal, styles)


def _number_columns(rows: Sequence[Row]) -> list[tuple[TableColumn, list[str]]]:
    """What was measured. A narrow terminal drops the highest priorities first."""
    time_unit = MEDIAN.unit(rows)
    algbw_unit = ALGBW.unit(filter(has_bandwidth, rows))
    busbw_unit = BUSBW.unit(rows)
    are_collectives = all(map(is_collective, rows))
    shared = shared_flags(filter(is_measured, rows))
    repetitions = [NO_NUMBER if row.repetitions is None else str(row.repetitions) for row in rows]
    return [
        (
            TableColumn("message", right=True),
            [format_bytes(row.message_bytes) if row.message_bytes else "-" for row in rows],
        ),
        (
            TableColumn(f"time\n{time_unit.name}", right=True, style="bold"),
            [value_cell(row, MEDIAN, time_unit) for row in rows],
        ),
        (TableColumn("±"), [width_cell(row) for row in rows]),
        (
            TableColumn(f"busbw\n{busbw_unit.name}", right=True, priority=1),
            [value_cell(row, BUSBW, busbw_unit) if is_collective(row) else "-" for row in rows],
        ),
        (
            TableColumn(
                f"{'algbw' if are_collectives else 'bandwidth'}\n{algbw_unit.name}",
                right=True,
                priority=5 if are_collectives else 1,
            ),
            [value_cell(row, ALGBW, algbw_unit) if has_bandwidth(row) else "-" for row in rows],
        ),
        (
            TableColumn("flags", priority=2),
            [" ".join(sorted(set(row.warnings) - shared)) for row in rows],
        ),
        (TableColumn("of limit\n%", right=True, priority=3), list(map(_share_text, rows))),
        (
            TableColumn(f"p99\n{time_unit.name}", right=True, priority=4),
            [time_unit.text(row.p99_s) for row in rows],
        ),
        (
            TableColumn("n", right=True, priority=6),
            repetitions if len({*repetitions}) > 1 or len(rows) == 1 else [],
        ),
        (
            TableColumn(
                "messages\n1/s", right=True, priority=1 if any(map(has_several_pairs, rows)) else 7
            ),
            [*map(_message_rate_text, rows)],
        ),
    ]


def _finding_lines(
    run: Mapping[str, Any], compared: Sequence[Matrix], terminal: Terminal
) -> list[str]:
    """A line for each rank and pair that differs from its class."""
    texts = [finding.text_with_host(run) for finding in told_once(findings_in(compared))]
    lines = [f"  {text}" for text in some_of(texts, MOST_FINDINGS)]
    if len(texts) > MOST_FINDINGS:
        lines[-1] += f": commbench.slow_pairs('{run['folder']}')"
    rule = (
        f"slow: takes more than {SLOW_FACTOR} x the median time of the other pairs of its class"
        " (self, same node, other node)"
    )
    return ["", paragraphs([rule, *lines], terminal)] if lines else []


# ---------------------------------------------------------------- title and meaning


def _causes(run: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Above the table: what stands behind ±, what made the numbers uncertain, the flags of all."""
    measured = [row for row in rows if is_measured(row)]
    networks = dict.fromkeys(
        row.reason for row in measured if "fallback" in row.warnings and row.reason
    )
    shared = sorted(
        shared_flags(measured) - {"oversubscribed", *(["fallback"] if networks else [])}
    )
    flags = [f"all cases: {flag_named(name).meaning} ({name})" for name in shared]
    medians = [*filter(None, map(MEDIAN.of, measured))]
    meaning = "; ".join(filter(None, [interval_note(medians), marks_note(medians)]))
    other = run["backend"].get("torch_of_system")
    torch = [] if other is None else [other_torch_text(other)]
    return [
        *filter(None, (meaning, disturbances_text([run], measured))),
        *networks,
        *flags,
        *settings_texts([run], {row.benchmark for row in rows}),
        *torch,
    ]


def _run_title(run: Mapping[str, Any], rows: Sequence[Row], varying: Sequence[str]) -> str:
    world = run["world"]
    parts = [backend_text(run), plural(world["size"], "rank", "ranks")]
    parts += [plural(world["nodes"], "node", "nodes"), f"timing {run['timing']}"]
    for name in CONSTANT:
        values = [getattr(row, name) for row in rows if not is_usual(name, getattr(row, name))]
        if values and name not in varying:
            parts.append(f"{name} {_short_text(name, values[0])}")
    has_processes = any(row.engine != MODEL_ENGINE for row in rows)
    parts += [text] if has_processes and (text := binding_text(run)) else []
    return ", ".join([*parts, *([f"label {run['label']}"] if run["label"] else [])])


def _variable_text(row: Row, name: str) -> str:
    """The value in a cell; empty for one that is not shown."""
    value = shown_value(row, name)
    return "" if is_usual(name, value) else _short_text(name, value)


def _short_text(name: str, value: Any) -> str:
    """Many pairs at once are shortened."""
    return short_pairs(value) if name == "pair" else str(value)


def _numberings(run: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """A line for each layout whose pairs are not numbered as the ranks of the world."""
    nodes = run["world"].get("ranks")
    paired = dict.fromkeys(row.layout for row in rows if row.pair)
    texts = (Layout.parse(name).numbering_text(nodes) for name in paired if nodes)
    return [text for text in texts if text is not None]


def _rows_by_series(rows: Sequence[Row], listed: list[Row], varying: Sequence[str]) -> RowsBySeries:
    """The listed rows by the text of the variables in which they differ, "" where all are one
    series.

    A window is no such variable: it shrinks with the message.
    """
    names = [name for name in CONSTANT if name != "window" and name in varying]
    several = len({row.benchmark for row in rows}) > 1
    series: dict[str, list[Row]] = {}
    for row in listed:
        parts = [_variable_text(row, name) for name in names]
        words = [row.benchmark if several or not any(parts) else "", *parts]
        series.setdefault(" ".join(filter(None, words)), []).append(row)
    return series if len(series) > 1 else {"": listed}
