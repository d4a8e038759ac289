"""The table of a run on stdout, fitted to the terminal (in a file one line per row), with its title
and notes."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from commbench.core.layout import Layout
from commbench.core.terminal import TableColumn, Terminal, paragraphs, printable, table_text
from commbench.core.units import format_bytes, format_number, format_seconds, plural, short_pairs
from commbench.core.variables import NAMES, SHOWN, is_number, is_usual
from commbench.results.columns import INTERRUPTED, UNFINISHED, Row, case_text, interval_texts
from commbench.results.flags import FLAGS, UNKNOWN_FLAG
from commbench.results.run_folder import PARTS, RECORD, exists, record_problem, resume_command
from commbench.results.slow_pairs import FACTOR, SPREADS, findings, matrices

from .parquet import recorded_rows
from .table import OWN_BUFFERS, TimeLine, has_own_buffers, is_matrix, matrix_text, natural_key

CONSTANT = (*(name for name in SHOWN if name != "benchmark"), "link")
# columns: a run has one device, and a table one timing mode
SHOWN_VARIABLES = tuple(name for name in (*SHOWN, "link") if name not in ("device", "timing_mode"))
# a narrow terminal drops the highest priorities first; _rows_table fills them in this order
NUMBER_COLUMNS = (
    TableColumn("message\nB", right=True),
    TableColumn("median\nus", right=True, style="bold"),
    TableColumn("interval\nus", right=True, priority=1),
    TableColumn("p99\nus", right=True, priority=4),
    TableColumn("algbw\nGB/s", right=True, priority=5),
    TableColumn("busbw\nGB/s", right=True, priority=2),
    TableColumn("of limit\n%", right=True, priority=3),
    TableColumn("messages\n1/s", right=True, priority=7),
    TableColumn("n", right=True, priority=6),
)
MARK_COLUMN = TableColumn("", style="yellow")  # on a terminal: the flags are below the table
FLAGS_COLUMN = TableColumn("flags", priority=8)  # in a file
NOT_FINISHED = "not finished"  # rows of an interrupted run, beside the flags
DIVIDED = (
    "message: in total; gather, scatter, all_gather, all_to_all and reduce_scatter divide it among"
    " the ranks"
)
CLOCKS = {
    "host": "the host's clock around the calls",
    "host_sync": (
        "the host's clock around calls and synchronisation: the time until the host has the result"
    ),
    "device_event": "the GPU's events around isolated calls: without the launch",
    "throughput": "the GPU's events around calls that follow one another without a wait",
    "graph": "the GPU's events around the replay of a captured graph of calls",
}
MOST_OPERATIONS = 3  # named per meaning of the median
MOST_FINDINGS = 10
LONG_REST_S = 5.0  # expected after the first pass; a shorter rest needs no table in between
WIDEST_MATRIX = 200  # characters, in a file
MOST_SERIES = 6  # that a line names
LONGEST_REASON = 400  # characters on a terminal: a reason can be a stack of 50 lines


@dataclass
class Console:
    """A Writer that prints the table of the run at its end, and after a first pass that took
    long."""

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        self._run = run
        self._begun_s = time.monotonic()
        # of earlier starts of the run
        earlier = recorded_rows(Path(folder)) if run.get("segments") else []
        # the newest of each case
        self._rows: dict[str, Row] = {row["case_id"]: row for row in earlier}
        self._time_lines: dict[str, TimeLine] = {}

    def case(
        self, row: Row, samples: Mapping[str, NDArray[Any]], counters: Mapping[str, NDArray[Any]]
    ) -> None:
        first_pass = len(self._rows) < self._run.get("cases", 0)
        self._rows[row["case_id"]] = row
        self._time_lines.setdefault(row["case_id"], TimeLine()).add(counters)
        if not first_pass or len(self._rows) < self._run["cases"]:
            return
        # the user may wait long for more passes: the table as it is now; without a terminal a line
        # per case
        rows = list(self._rows.values())
        terminal = Terminal.of(sys.stderr)
        waiting = sum(row["stop_reason"] == INTERRUPTED for row in rows)
        # each like the first
        passes = self._run.get("config", {}).get("timing", {}).get("visits", 1) - 1
        if passes * (time.monotonic() - self._begun_s) * waiting < LONG_REST_S * len(rows):
            return
        rows = [{**row, "stop_reason": None} for row in rows]  # further visits follow
        lines = (f"first pass: {case_text(row)}: {format_seconds(row['median_s'])}" for row in rows)
        text = (
            printable("\n".join(lines))
            if terminal.width is None
            else run_text(self._run, rows, terminal)
        )
        print(
            f"{text}\nthe first pass is done; further passes over {waiting} cases follow\n",
            file=sys.stderr,
        )

    def end(self, run: Mapping[str, Any]) -> None:
        if run.get("status") == "running":  # further launches follow
            return
        terminal = Terminal.of(sys.stdout)
        print(run_text(run, list(self._rows.values()), terminal, self._time_lines))
        folder = printable(str(run["folder"]))
        quoted = printable(shlex.quote(str(run["folder"])))
        problem = record_problem(run["folder"])
        # parquet, which ends after this writer, writes a run.json that was removed again
        if exists(Path(run["folder"]) / RECORD) or exists(Path(run["folder"]) / PARTS):
            print(
                f"results: {folder}\nopen:    commbench report {quoted} --html report.html",
                flush=True,
            )
        elif problem is not None:
            print(problem, flush=True)
        else:
            print(
                "nothing is stored by writer=console alone; writer=[parquet,console] keeps the"
                " results",
                flush=True,
            )


def run_text(
    run: Mapping[str, Any],
    rows: list[Row],
    terminal: Terminal,
    time_lines: Mapping[str, TimeLine] | None = None,
) -> str:
    """Title, table, matrices of many pairs, flags and reasons, slow or asymmetric pairs."""
    if not rows:
        return f"{terminal.paragraph(_run_title(run, rows))}\nno case is finished\n"
    shown_matrices = sorted(
        filter(is_matrix, matrices(rows)),
        key=lambda matrix: row_order(next(iter(matrix.rows.values()))),
    )
    in_matrix = {id(row): row for matrix in shown_matrices for row in matrix.rows.values()}
    listed = sorted((row for row in rows if id(row) not in in_matrix), key=row_order)
    series = _rows_by_series(rows, listed)
    measured = [set(flags_of(row)) for row in rows if row["status"] == "ok"]
    common = sorted(set.intersection(*measured)) if len(measured) > 1 else []
    parts = [terminal.styled(terminal.paragraph(_run_title(run, rows)), "bold")]
    parts += [terminal.paragraph(f"every row: {', '.join(common)}")] if common else []
    modes = dict.fromkeys(row["timing_mode"] for row in listed)
    # times of different clocks are never in one table
    for mode in modes if len(modes) > 1 else [None]:
        if mode is not None:
            parts.append(f"timing_mode {mode}: {CLOCKS.get(mode, '')}")
        alike = [row for row in listed if mode in (None, row["timing_mode"])]
        if alike or not shown_matrices:
            parts.append(_rows_table(rows, alike, terminal, _marked(series), common))
            parts += [""] if shown_matrices or mode is not None else []
    named = [name for name in CONSTANT if not _is_constant(rows, name)]
    for matrix in shown_matrices:
        text = matrix_text(matrix, named, terminal.width or WIDEST_MATRIX)
        parts.append(f"{printable(text)}\n")
    own = flags_in(listed) - {*common}
    flags = [f"{name}: {_flag_sizes(name, series)}: {flag_text(name)}" for name in sorted(own)]
    others = [*common, *sorted(flags_in(in_matrix.values()) - own - {*common})]
    flags += [f"{name}: {flag_text(name)}" for name in others]
    missing = _unfinished_texts(run, series)
    meaning = _column_meanings(rows, "interval" in "".join(parts))
    parts.append(
        paragraphs(
            [*_reason_texts(series, terminal), *missing, *flags, *meaning, *_numberings(run, rows)],
            terminal,
        )
    )
    row_of = {row["case_id"]: row for row in rows} if time_lines else {}
    for case_id, line in (time_lines or {}).items():
        title = case_text(row_of[case_id]) if case_id in row_of else case_id
        parts += [f"\n{text}"] if (text := line.text(title, terminal)) else []
    return "\n".join([*parts, *_finding_lines(run, rows, terminal)]) + "\n"


def _rows_table(
    rows: Sequence[Row],
    listed: Sequence[Row],
    terminal: Terminal,
    marked: Container[str],
    common: Sequence[str],
) -> str:
    """The listed rows, without the columns that all rows share."""
    names = [
        name for name in SHOWN_VARIABLES if name == "benchmark" or not _is_constant(rows, name)
    ]
    columns = [TableColumn(name, right=is_number(name)) for name in names]
    last = FLAGS_COLUMN if terminal.width is None else MARK_COLUMN
    cells = []
    styles = {}
    for number, row in enumerate(listed):
        words = [*([NOT_FINISHED] if _is_unfinished(row) else []), *flags_of(row)]
        flags = ",".join(word for word in words if word not in common)
        if row["status"] != "ok":
            flags = f"{row['status']}: {row['reason']}"
            styles[number] = "red"
        mark = flags if terminal.width is None else "!" if row["case_id"] in marked else ""
        median, low, high, p99 = (
            format_number(None if row[name] is None else 1e6 * row[name])
            for name in ("median_s", "ci_low_s", "ci_high_s", "p99_s")
        )
        cells.append(
            (
                *(_variable_text(row, name) for name in names),
                str(row["message_bytes"] or "-"),
                median if row["status"] == "ok" else str(row["status"]),
                "-" if row["ci_low_s"] is None else f"{low} .. {high}",
                p99,
                format_number(row["algbw_gb_per_s"]),
                format_number(row["busbw_gb_per_s"]),
                "-" if row["efficiency"] is None else format_number(100 * row["efficiency"]),
                format_number(row["message_rate_per_s"]),
                "-" if row["repetitions"] is None else str(row["repetitions"]),
                mark,
            )
        )
    shown = [*columns, *NUMBER_COLUMNS, *([last] if any(row[-1] for row in cells) else [])]
    return table_text(shown, [row[: len(shown)] for row in cells], terminal, styles)


def _finding_lines(run: Mapping[str, Any], rows: Sequence[Row], terminal: Terminal) -> list[str]:
    """A line for each rank and pair that differs from its class; the pairs of a slow rank are left
    out."""
    shown = [
        finding for finding in findings(rows) if finding.kind != "slow" or finding.rank is None
    ]
    lines = [f"  {finding.text_with_host(run)}" for finding in shown[:MOST_FINDINGS]]
    if len(shown) > MOST_FINDINGS:
        lines.append(
            f"  ... and {len(shown) - MOST_FINDINGS} more: commbench.slow_pairs('{run['folder']}')"
        )
    of_class = "the median of its class (self, same node, other node)"
    rule = (
        f"slow: above {FACTOR} x {of_class} and {SPREADS:g} x its spread, at a neighbouring"
        " size, too"
    )
    return ["", paragraphs([rule, *lines], terminal)] if lines else []


def row_order(row: Row) -> tuple[Any, ...]:
    """Sort key of a row, or of the fields of a Case."""
    return tuple(natural_key(row[name]) for name in NAMES)


# ---------------------------------------------------------------- title and meaning


def _run_title(run: Mapping[str, Any], rows: Sequence[Row]) -> str:
    world = run["world"]
    parts = [
        f"{run['backend']['name']} ({run['backend'].get('library', '')})",
        plural(world["size"], "rank", "ranks"),
    ]
    parts += [plural(world["nodes"], "node", "nodes"), f"timing {run['timing']}"]
    for name in CONSTANT:
        value = next(filter(None, (_variable_text(row, name) for row in rows)), None)
        parts += [f"{name} {value}"] if value is not None and _is_constant(rows, name) else []
    return ", ".join([*parts, *([f"label {run['label']}"] if run["label"] else [])])


def _value_or_none(row: Row, name: str) -> Any:
    """The value of a variable; None for a default that is not shown."""
    return None if is_usual(name, row[name]) else row[name]


def _is_constant(rows: Sequence[Row], name: str) -> bool:
    return len({_value_or_none(row, name) for row in rows} - {None}) < 2


def _variable_text(row: Row, name: str) -> str:
    """The value in a title or a cell; many pairs at once are shortened."""
    value = _value_or_none(row, name)
    return "" if value is None else short_pairs(value) if name == "pair" else str(value)


def _column_meanings(rows: Sequence[Row], has_intervals: bool) -> list[str]:
    """What the columns mean. Where median has several meanings, the operations of each: `collective
    (all_reduce)`.

    Rows of earlier versions have no median_of.
    """
    operations: dict[str, set[str]] = {}
    for row in rows:
        if row.get("median_of") is not None:
            operations.setdefault(row["median_of"], set()).add(row["benchmark"])
    kinds = list(operations) or [
        "per message (half a round trip for p2p_latency) or per collective"
    ]
    if len(kinds) > 1:
        kinds = []
        for kind, names in sorted((kind, sorted(names)) for kind, names in operations.items()):
            more = (
                f" and {len(names) - MOST_OPERATIONS} more" if len(names) > MOST_OPERATIONS else ""
            )
            kinds.append(f"{kind} ({', '.join(names[:MOST_OPERATIONS])}{more})")
    divided = any(row["bytes_per_rank"] not in (None, row["message_bytes"]) for row in rows)
    texts = interval_texts(rows) if has_intervals else []
    return [
        f"median: {', '.join(kinds)}; GB/s is 10^9 B/s",
        *([DIVIDED] if divided else []),
        *([OWN_BUFFERS] if has_own_buffers(rows) else []),
        *([f"interval: {'; '.join(texts)}"] if texts else []),
    ]


# ---------------------------------------------------------------- flags and reasons


def flags_of(row: Row) -> list[str]:
    """The flags of a measured row."""
    return list(row["warnings"] or ()) if row["status"] == "ok" else []


def flags_in(rows: Iterable[Row]) -> set[str]:
    return {flag for row in rows for flag in flags_of(row)}


def _numberings(run: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """A line for each layout whose pairs are not numbered as the ranks of the world."""
    nodes = run["world"].get("ranks")
    paired = dict.fromkeys(row["layout"] for row in rows if row["pair"])
    texts = (Layout.parse(name).numbering_text(nodes) for name in paired if nodes)
    return [text for text in texts if text is not None]


def flag_text(name: str) -> str:
    flag = FLAGS.get(name, UNKNOWN_FLAG)
    return f"{flag.meaning}; {flag.advice}"


def _rows_by_series(rows: Sequence[Row], listed: list[Row]) -> dict[str, list[Row]]:
    """The listed rows by the text of the variables in which they differ, "" where all are one
    series.

    A window is no such variable: it shrinks with the message.
    """
    names = [name for name in CONSTANT if name != "window" and not _is_constant(rows, name)]
    several = len({row["benchmark"] for row in rows}) > 1
    series: dict[str, list[Row]] = {}
    for row in listed:
        parts = [_variable_text(row, name) for name in names]
        words = [row["benchmark"] if several or not any(parts) else "", *parts]
        series.setdefault(" ".join(filter(None, words)), []).append(row)
    return series if len(series) > 1 else {"": listed}


def _marked(series: Mapping[str, Sequence[Row]]) -> set[str]:
    """case_id of the rows with a flag that most rows of their series do not have, and of those
    without numbers."""
    marked = set()
    for rows in series.values():
        measured = sum(row["status"] == "ok" for row in rows)
        counts = Counter(flag for row in rows for flag in flags_of(row))
        rare = {flag for flag, count in counts.items() if 2 * count <= measured}
        strange = (
            row
            for row in rows
            if row["status"] != "ok" or _is_unfinished(row) or rare & {*flags_of(row)}
        )
        marked |= {row["case_id"] for row in strange}
    return marked


def _flag_sizes(flag: str, series: Mapping[str, Sequence[Row]]) -> str:
    """The sizes with this flag: `4 MiB, 8 MiB`, `all but 8 B`."""
    texts: dict[str, str] = {}
    for name, rows in series.items():
        measured = [row for row in rows if row["status"] == "ok"]
        having = [row for row in measured if flag in flags_of(row)]
        without = [row for row in measured if flag not in flags_of(row)]
        if having and not without and len(having) > 1:
            texts[name] = "all sizes"
        elif having:
            most = len(having) > max(len(without), 2) and without
            texts[name] = f"all but {_sizes_text(without)}" if most else _sizes_text(having)
    return _by_series(texts)


def _reason_texts(series: Mapping[str, Sequence[Row]], terminal: Terminal) -> list[str]:
    """`failed: all_reduce 1 MiB: reason`, a line for each status and reason."""
    rows_by_reason: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for name, rows in series.items():
        for row in rows:
            if row["status"] != "ok":
                key = row["status"], row["reason"] or "no reason given"
                rows_by_reason.setdefault(key, {}).setdefault(name, []).append(row)
    texts = []
    for (status, reason), groups in sorted(rows_by_reason.items()):
        line = " ".join(reason.split())
        if terminal.width is not None and len(line) > LONGEST_REASON:
            line = f"{line[: LONGEST_REASON // 2]} ... {line[-LONGEST_REASON // 2 :]}"
        sizes = {name: _sizes_text(rows) for name, rows in groups.items()}
        texts.append(f"{status}: {_by_series(sizes)}: {line}")
    return texts


def _is_unfinished(row: Row) -> bool:
    """Whether the row has numbers, but from fewer visits than planned."""
    return row["status"] == "ok" and row["stop_reason"] in UNFINISHED


def _unfinished_texts(run: Mapping[str, Any], series: Mapping[str, Sequence[Row]]) -> list[str]:
    """`not finished: 8 B, 1 KiB; 40 of 42 cases not begun: ...` of a run that was interrupted."""
    unfinished = {name: list(filter(_is_unfinished, rows)) for name, rows in series.items()}
    begun = _by_series({name: _sizes_text(rows) for name, rows in unfinished.items() if rows})
    ended_early = run.get("status") in ("interrupted", "broken")
    planned = run.get("cases", 0) if ended_early else 0
    rows = sum(map(len, series.values()))
    rest = (
        f"{planned - rows} of {plural(planned, 'case', 'cases')} not begun"
        if planned > rows
        else ""
    )
    text = "; ".join(filter(None, [begun if any(unfinished.values()) else "", rest]))
    return (
        [f"{NOT_FINISHED}: {text}: {resume_command(run['folder'])} measures what is missing"]
        if text
        else []
    )


def _by_series(texts: Mapping[str, str]) -> str:
    """`p2p_latency 8 B, 1 KiB; all_reduce all sizes`."""
    parts = [f"{name} {text}".strip() for name, text in list(texts.items())[:MOST_SERIES]]
    more = [f"and {len(texts) - MOST_SERIES} more"] if len(texts) > MOST_SERIES else []
    return "; ".join([*filter(None, parts), *more]) or "all"


def _sizes_text(rows: Iterable[Row]) -> str:
    return ", ".join(
        format_bytes(size) for size in sorted({row["message_bytes"] or 0 for row in rows}) if size
    )
