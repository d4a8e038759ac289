"""One table a run on stdout, with units; progress on stderr while it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from commbench.units import format_bytes, format_count, format_rate, format_seconds

LEAST_WIDTH = 140
CONSTANT = (
    "layout",
    "pair",
    "dtype",
    "engine",
    "reduction",
    "in_place",
)  # told once in the title where all rows share them
COLUMNS = (  # heading, justification
    ("benchmark", "left"), ("layout", "left"), ("pair", "left"), ("dtype", "left"), ("engine", "left"),
    ("reduction", "left"), ("in_place", "left"), ("message", "right"), ("median", "right"), ("95 % interval", "right"),
    ("p99", "right"), ("algbw GB/s", "right"), ("busbw GB/s", "right"), ("messages/s", "right"), ("n", "right"),
    ("notes", "left"),
)  # fmt: skip


@dataclass
class Console:
    """See contracts.Writer."""

    def __post_init__(self) -> None:
        self._rows: list[Mapping[str, Any]] = []
        self._progress: Any = None
        self._task: Any = None
        self._cases = 0

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        self._cases = int(run["cases"])
        if terminal(sys.stderr):
            self._progress = _progress_bar()
            self._task = self._progress.add_task("starting", total=self._cases)
            self._progress.start()

    def case(
        self, row: Mapping[str, Any], samples: Mapping[str, NDArray[Any]], counters: Mapping[str, NDArray[Any]]
    ) -> None:
        self._rows.append(row)
        text = f"{row['benchmark']} {row['layout']} {row['pair'] or ''} {format_bytes(row['message_bytes'])}"
        text = " ".join(text.split())
        if self._progress is not None:
            self._progress.update(self._task, advance=1, description=text)
            return
        result = format_seconds(row["median_s"]) if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
        print(f"[{len(self._rows)}/{self._cases}] {text}: {result}", file=sys.stderr, flush=True)

    def end(self, run: Mapping[str, Any]) -> None:
        if self._progress is not None:
            self._progress.update(self._task, description="done")
            self._progress.stop()
        print(table_text(run, self._rows))
        print(f"results: {run['folder']}")
        print(f"open:    python -c \"import commbench; print(commbench.load('{run['folder']}'))\"", flush=True)


def terminal(stream: Any) -> bool:
    """A person is looking: the stream itself, or the terminal of the parent that started this world."""
    return bool(stream.isatty() or os.environ.get("COMMBENCH_TERMINAL"))


def table_text(run: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> str:
    """The run's table with a title above and the meaning of the numbers below."""
    import io

    from rich.console import Console as RichConsole
    from rich.table import Table

    table = Table(
        title=_title(run, rows), title_justify="left", caption=_caption(rows), caption_justify="left", box=None
    )
    shown = [index for index, (name, _) in enumerate(COLUMNS) if name not in CONSTANT or not _constant(rows, name)]
    for index in shown:
        heading, side = COLUMNS[index]
        table.add_column(heading, justify=side, no_wrap=heading != "notes", overflow="fold")  # type: ignore[arg-type]
    told = _common_flags(rows)
    for row in sorted(rows, key=_place):
        cells = _cells(row, told)
        table.add_row(*(cells[index] for index in shown))
    width = max(int(os.environ.get("COLUMNS", "0")), LEAST_WIDTH)
    console = RichConsole(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["benchmark"], row["layout"], row["engine"], row["dtype"], row["pair"] or "", row["message_bytes"])


def _constant(rows: list[Mapping[str, Any]], name: str) -> bool:
    return len({row[name] for row in rows if row[name] is not None}) < 2


def _title(run: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> str:
    parts = [f"{run['backend']['name']} ({run['backend'].get('library', '')})", f"{run['world']['size']} ranks"]
    parts += [f"{run['world']['nodes']} node(s)", f"timing {run['timing']}"]
    for name in CONSTANT:
        value = next((row[name] for row in rows if row[name] is not None), None)
        parts += [f"{name} {value}"] if value is not None and _constant(rows, name) else []
    return ", ".join([*parts, *([f"label {run['label']}"] if run["label"] else [])])


def _caption(rows: list[Mapping[str, Any]]) -> str:
    everywhere = _common_flags(rows)
    noted = sorted({flag for row in rows for flag in row["flags"] or ()})
    lines = ["median: per message (half a round trip for p2p_latency) or per collective; GB/s is 10^9 B/s"]
    lines += [f"every row: {', '.join(sorted(everywhere))}"] if everywhere else []
    return "\n".join([*lines, *(f"{flag}: {MEANINGS[flag]}" for flag in noted if flag in MEANINGS)])


def _common_flags(rows: list[Mapping[str, Any]]) -> set[str]:
    """Flags that all measured rows share: told once."""
    measured = [set(row["flags"] or ()) for row in rows if row["status"] == "ok"]
    return set.intersection(*measured) if len(measured) > 1 else set()


def _cells(row: Mapping[str, Any], told: set[str]) -> tuple[str, ...]:
    interval = "-"
    if row["ci_low_s"] is not None:
        interval = f"{format_seconds(row['ci_low_s'])} .. {format_seconds(row['ci_high_s'])}"
    flags = " ".join(flag for flag in row["flags"] or () if flag not in told)
    return (
        *("" if row[name] is None else str(row[name]) for name, _ in COLUMNS[:7]),
        format_bytes(row["message_bytes"]), format_seconds(row["median_s"]), interval, format_seconds(row["p99_s"]),
        format_rate(row["algbw_gb_per_s"]), format_rate(row["busbw_gb_per_s"]), format_count(row["message_rate_per_s"]),
        format_count(row["repetitions"]), flags if row["status"] == "ok" else f"{row['status']}: {row['reason']}",
    )  # fmt: skip


def _progress_bar() -> Any:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = RichConsole(file=sys.stderr, force_terminal=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


MEANINGS = {
    "noisy": "the interval is wider than -+ 5 %; repeat with timing=rigorous or on a quieter machine",
    "drifting": "the first and second half differ; look at the samples over time",
    "multimodal": "several typical times; look at the distribution before quoting the median",
    "oversubscribed": "more threads than cores; the scheduler is part of the number",
    "timer_limited": "reading the clock takes more than 5 % of a sample",
    "python_bound": "more than a tenth of the number is the price of the call itself (a group of one rank)",
    "in_cache": "rotation does not leave the last-level cache at this size",
    "skewed": "ranks left the barrier at times that differ by more than 5 % of the median",
}
