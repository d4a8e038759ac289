"""The table of a run on stdout, with units; progress on stderr while it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from commbench.core.flags import FLAGS, UNKNOWN_FLAG
from commbench.core.slow_pairs import FACTOR, SPREADS, Matrix, findings, matrices, slow_pairs
from commbench.core.text import printable
from commbench.core.units import format_bytes, format_count, format_rate, format_seconds

from .table import is_matrix, matrix_text

MIN_WIDTH = 140
CONSTANT = (  # named once in the title where all rows share them
    "layout", "pair", "dtype", "engine", "schedule", "window", "streams", "root", "reduction", "in_place", "staging",
    "link", "device", "timing_mode",
)  # fmt: skip
COLUMNS = (  # heading, justification
    ("benchmark", "left"), ("layout", "left"), ("pair", "left"), ("dtype", "left"), ("engine", "left"),
    ("schedule", "left"), ("window", "right"), ("streams", "right"), ("root", "right"), ("reduction", "left"),
    ("in_place", "left"), ("staging", "left"), ("link", "left"), ("message", "right"), ("median", "right"),
    ("95 % interval", "right"), ("p99", "right"),
    ("algbw GB/s", "right"), ("busbw GB/s", "right"), ("of limit", "right"), ("messages/s", "right"), ("n", "right"),
    ("notes", "left"),
)  # fmt: skip
TEXT_COLUMNS = 13  # before the numbers
DEFAULTS = {  # values that are not shown: no message, pair after pair, and the usual on a CPU
    ("dtype", "none"), ("schedule", "serial"), ("staging", "none"), ("device", "cpu"), ("timing_mode", "host"),
}  # fmt: skip
CLOCKS = {
    "host": "the host's clock around the calls",
    "host_sync": "the host's clock around calls and synchronisation: what waits for the result sees this",
    "device_event": "the GPU's events around isolated calls: without the launch",
    "throughput": "the GPU's events around calls that follow one another without a wait",
    "graph": "the GPU's events around the replay of a captured graph of calls",
}
MAX_NAMED_PAIRS = 3  # of those that run at once
MAX_FINDINGS = 10


@dataclass
class Console:
    """See Writer."""

    def __post_init__(self) -> None:
        self._rows: dict[str, Mapping[str, Any]] = {}  # by case: a soak reports its newest numbers
        self._progress: Any = None
        self._task: Any = None
        self._cases = 0

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        self._cases = int(run["cases"])
        bound = format_seconds(run["at_most_s"])
        print(f"{self._cases} cases, at most {bound}: {run['folder']}", file=sys.stderr, flush=True)
        if terminal(sys.stderr):
            self._progress = _progress_bar()
            self._task = self._progress.add_task("starting", total=self._cases)
            self._progress.start()

    def case(
        self, row: Mapping[str, Any], samples: Mapping[str, NDArray[Any]], counters: Mapping[str, NDArray[Any]]
    ) -> None:
        again = row["case_id"] in self._rows
        self._rows[row["case_id"]] = row
        words = (row["benchmark"], row["layout"], _variable_text(row, "pair"), _message_text(row))
        text = " ".join(word for word in words if word not in ("", "-"))
        if self._progress is not None:
            self._progress.update(self._task, advance=0 if again else 1, description=text)
            return
        result = format_seconds(row["median_s"]) if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
        print(printable(f"[{len(self._rows)}/{self._cases}] {text}: {result}"), file=sys.stderr, flush=True)

    def end(self, run: Mapping[str, Any]) -> None:
        if self._progress is not None:
            self._progress.update(self._task, description="done")
            self._progress.stop()
        print(printable(table_text(run, list(self._rows.values()))))
        print(f"results: {run['folder']}")
        print(f"open:    python -c \"import commbench; print(commbench.load('{run['folder']}'))\"", flush=True)


def terminal(stream: Any) -> bool:
    """Whether the stream is a terminal, or that of the parent that started this world is one."""
    return bool(stream.isatty() or os.environ.get("COMMBENCH_TERMINAL"))


def table_text(run: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> str:
    """Title, table, a matrix where there are many pairs, a caption, and slow or asymmetric pairs."""
    import io

    from rich.console import Console as RichConsole

    width = max(int(os.environ.get("COLUMNS", "0")), MIN_WIDTH)
    together = sorted(filter(is_matrix, matrices(rows)), key=lambda one: _row_order(next(iter(one.rows.values()))))
    inside = {id(row) for matrix in together for row in matrix.rows.values()}
    listed = [row for row in rows if id(row) not in inside]
    console = RichConsole(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(_title(run, rows))
    for mode, alike in (_rows_by_clock(listed) or ({} if together else {None: []})).items():
        if mode is not None:
            console.print(f"timing_mode {mode}: {CLOCKS.get(mode, '')}")
        console.print(_rich_table(rows, alike), *([""] if together or mode is not None else []))
    for matrix in together:
        console.print(_matrix_section(matrix, rows, width), end="\n\n")
    console.print("\n".join([_caption(rows), *_finding_lines(run, rows)]))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _rows_by_clock(rows: list[Mapping[str, Any]]) -> dict[str | None, list[Mapping[str, Any]]]:
    """Rows by timing mode, which are never in one table; the key is None if there is only one."""
    modes = dict.fromkeys(row["timing_mode"] for row in rows)
    if len(modes) < 2:
        return {None: rows} if rows else {}
    return {mode: [row for row in rows if row["timing_mode"] == mode] for mode in modes}


def _rich_table(rows: list[Mapping[str, Any]], listed: list[Mapping[str, Any]]) -> Any:
    """The listed rows, without the columns that all rows share."""
    from rich.table import Table

    table = Table(box=None)
    shown = [index for index, (name, _) in enumerate(COLUMNS) if not _left_out(rows, name)]
    for index in shown:
        heading, side = COLUMNS[index]
        table.add_column(heading, justify=side, no_wrap=heading != "notes", overflow="fold")  # type: ignore[arg-type]
    common = _common_flags(rows)
    for row in sorted(listed, key=_row_order):
        cells = _row_cells(row, common)
        table.add_row(*(cells[index] for index in shown))
    return table


def _matrix_section(matrix: Matrix, rows: list[Mapping[str, Any]], width: int) -> str:
    return matrix_text(matrix, slow_pairs(matrix), [name for name in CONSTANT if not _is_constant(rows, name)], width)


def _finding_lines(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each rank and pair that differs from its class, but none for the pairs of a slow rank."""
    found = [one for one in findings(rows) if one.kind != "slow" or one.rank is None]
    lines = [f"  {one.text_with_host(run)}" for one in found[:MAX_FINDINGS]]
    if len(found) > MAX_FINDINGS:
        lines.append(f"  ... and {len(found) - MAX_FINDINGS} more: commbench.slow_pairs('{run['folder']}')")
    rule = f"slow: above {FACTOR} x the median of its class (self, same node, other node) and {SPREADS:g} x its spread"
    return ["", rule, *lines] if lines else []


def _row_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sort key: by text, then the ranks of the pair and the other numbers by size."""
    pair = [int(rank) for one in (row["pair"] or "").split() for rank in one.split("-")]
    numbers = [-1 if row[name] is None else row[name] for name in ("root", "streams", "message_bytes", "window")]
    texts = [row[name] or "" for name in ("benchmark", "layout", "engine", "dtype", "schedule")]
    return (*texts, len(pair), pair, *numbers)


def _value_or_none(row: Mapping[str, Any], name: str) -> Any:
    """The value of a variable; None for a default that is not shown."""
    return None if (name, row[name]) in DEFAULTS else row[name]


def _variable_text(row: Mapping[str, Any], name: str) -> str:
    """The value in a title or a cell; of many pairs at once the first and the last."""
    value = _value_or_none(row, name)
    pairs = str(value).split() if name == "pair" and value else []
    if len(pairs) > MAX_NAMED_PAIRS:
        return f"{pairs[0]} .. {pairs[-1]} ({len(pairs)} at once)"
    return "" if value is None else str(value)


def _message_text(row: Mapping[str, Any]) -> str:
    return "-" if row["message_bytes"] == 0 else format_bytes(row["message_bytes"])


def _left_out(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    if name == "of limit":
        return all(row["efficiency"] is None for row in rows)
    return name in CONSTANT and _is_constant(rows, name)


def _is_constant(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return len({_value_or_none(row, name) for row in rows} - {None}) < 2


def _title(run: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> str:
    parts = [f"{run['backend']['name']} ({run['backend'].get('library', '')})", f"{run['world']['size']} ranks"]
    parts += [f"{run['world']['nodes']} node(s)", f"timing {run['timing']}"]
    for name in CONSTANT:
        value = next(filter(None, (_variable_text(row, name) for row in rows)), None)
        parts += [f"{name} {value}"] if value is not None and _is_constant(rows, name) else []
    return ", ".join([*parts, *([f"label {run['label']}"] if run["label"] else [])])


def _caption(rows: list[Mapping[str, Any]]) -> str:
    everywhere = _common_flags(rows)
    noted = sorted({flag for row in rows for flag in row["flags"] or ()})
    lines = ["median: per message (half a round trip for p2p_latency) or per collective; GB/s is 10^9 B/s"]
    lines += [f"every row: {', '.join(sorted(everywhere))}"] if everywhere else []
    return "\n".join([*lines, *map(_flag_text, noted)])


def _flag_text(name: str) -> str:
    flag = FLAGS.get(name, UNKNOWN_FLAG)
    return f"{name}: {flag.meaning}; {flag.advice}"


def _common_flags(rows: list[Mapping[str, Any]]) -> set[str]:
    """Flags that all measured rows share, which are named once."""
    measured = [set(row["flags"] or ()) for row in rows if row["status"] == "ok"]
    return set.intersection(*measured) if len(measured) > 1 else set()


def _row_cells(row: Mapping[str, Any], common: set[str]) -> tuple[str, ...]:
    interval = "-"
    if row["ci_low_s"] is not None:
        interval = f"{format_seconds(row['ci_low_s'])} .. {format_seconds(row['ci_high_s'])}"
    flags = " ".join(flag for flag in row["flags"] or () if flag not in common)
    return (
        *(_variable_text(row, name) for name, _ in COLUMNS[:TEXT_COLUMNS]),
        _message_text(row), format_seconds(row["median_s"]), interval, format_seconds(row["p99_s"]),
        format_rate(row["algbw_gb_per_s"]), format_rate(row["busbw_gb_per_s"]),
        "-" if row["efficiency"] is None else f"{100 * row['efficiency']:.3g} %",
        format_count(row["message_rate_per_s"]), format_count(row["repetitions"]),
        flags if row["status"] == "ok" else f"{row['status']}: {row['reason']}",
    )  # fmt: skip


def _progress_bar() -> Any:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = RichConsole(file=sys.stderr, force_terminal=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
