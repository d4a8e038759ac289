"""`commbench show RUN...`: the table of an old run again, or several backends side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.terminal import Column, Terminal, printable, table_text
from commbench.core.units import format_number
from commbench.report.load import find_runs, load_run, read_rows, run_tables
from commbench.writers.console import TimeLine, row_order, run_text
from commbench.writers.nccl_tests import NcclTests
from commbench.writers.osu import Osu
from commbench.writers.parquet import plain_rows

from .options import Options

Row = Mapping[str, Any]
CONSOLE, OSU, NCCL_TESTS, CSV = "console", "osu", "nccl_tests", "csv"
BESIDE = ("backend", "engine", "label", "interface", "cuda_ipc", "device")  # what the columns of a pivot are named by
SHARED = ("benchmark", "layout", "pair", "dtype", "timing_mode", "reduction", "root", "schedule", "streams", "in_place")


def command(words: list[str]) -> int:
    """Print runs in one of the forms; exit status 0. Raises CommbenchError, ConfigError."""
    options = _parser().parse_args(words)
    runs = [run for path in options.paths for run in find_runs(path)]
    if not runs:
        raise ConfigError(f"no run.json below {', '.join(options.paths)}; give the folder of a run or of several")
    if options.form == CSV:
        from .export import csv_text

        sys.stdout.write(csv_text(read_rows(runs), "cases"))
        return 0
    terminal = Terminal.of(sys.stdout)
    rows = {run: rows_of(run) for run in runs}
    every = [row for one in rows.values() for row in one]
    if options.form == CONSOLE and len({row["backend"] for row in every}) > 1:
        print(pivot_text(every, terminal))
        return 0
    for run, found in rows.items():
        print(shown_text(run, found, options.form, terminal))
        print(printable(f"results: {run}\n"))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Options(prog="commbench show", description="The table of a run again; of several backends side by side.")
    parser.add_argument("paths", nargs="+", metavar="RUN", help="folders of runs, or folders with runs in them")
    parser.add_argument(
        "--as", dest="form", choices=(CONSOLE, OSU, NCCL_TESTS, CSV), default=CONSOLE, help="default: console"
    )
    return parser


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The rows of a run, as its writers got them; of a case the newest."""
    rows = [row for table in run_tables(run, "cases") for row in plain_rows(table)]
    return list({row["case_id"]: row for row in rows}.values())


def shown_text(run: Path, rows: Sequence[Row], form: str, terminal: Terminal) -> str:
    """The tables of one run."""
    record = load_run(run)
    strange = [key for key in ("backend", "world") if not isinstance(record.get(key, {}), dict)]
    if strange:
        raise CommbenchError(f"{run}/run.json is not as commbench writes it: {strange[0]} is not a mapping")
    if "backend" not in record:
        return f"{run.name}: nothing was measured: {record.get('reason') or record.get('status')}"
    if form != CONSOLE:
        return printable((Osu() if form == OSU else NcclTests()).text(record, rows))
    soaks = [row["case_id"] for row in rows if row["timing"] == "soak"]
    return run_text(record, list(rows), terminal, _time_lines(run, soaks) if soaks else None)


def _time_lines(run: Path, case_ids: Sequence[str]) -> dict[str, TimeLine]:
    lines = {case_id: TimeLine() for case_id in case_ids}
    for table in run_tables(run, "counters"):
        columns = table.to_pydict()
        for case_id, line in lines.items():
            chosen = [index for index, one in enumerate(columns["case_id"]) if one == case_id]
            line.add({name: [columns[name][index] for index in chosen] for name in ("t_ns", "name", "value")})
    return lines


def pivot_text(rows: Sequence[Row], terminal: Terminal) -> str:
    """Size by backend, a table for each operation and world; of several launches their median."""
    measured = [row for row in rows if row["status"] == "ok"]
    names = [name for name in BESIDE if name == "backend" or len({row[name] for row in measured} - {None, ""}) > 1]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(measured, key=row_order):
        groups.setdefault(tuple(row[name] for name in SHARED), []).append(row)
    named = [name for name in SHARED[1:] if name == "layout" or len({group[0][name] for group in groups.values()}) > 1]
    parts = []
    for group in groups.values():
        rate = any(row["window"] is not None for row in group)
        values = [f"{name} {group[0][name]}" for name in named if group[0][name] is not None]
        title = [group[0]["benchmark"], *values]
        head = f"{', '.join(title)}: {'algbw in GB/s' if rate else 'median in us'}"
        parts.append(f"{terminal.styled(terminal.paragraph(head), 'bold')}\n{_pivot(group, names, rate, terminal)}\n")
    lost = len(rows) - len(measured)
    return "\n".join([*parts, *([f"{lost} cases have no number: commbench report names why"] if lost else [])])


def _pivot(group: Sequence[Row], names: Sequence[str], rate: bool, terminal: Terminal) -> str:
    cells: dict[int, dict[str, list[float]]] = {}
    for row in group:
        heading = " ".join(str(row[name]) for name in names if row[name] not in (None, ""))
        value = row["algbw_gb_per_s"] if rate else 1e6 * row["median_s"]
        cells.setdefault(row["message_bytes"] or 0, {}).setdefault(heading, []).append(value)
    headings = sorted({heading for one in cells.values() for heading in one})
    columns = [Column("message\nB", right=True), *(Column(heading, right=True) for heading in headings)]
    lines = []
    for size, found in sorted(cells.items()):
        middle = {heading: median(values) for heading, values in found.items()}
        lines.append((str(size or "-"), *(format_number(middle.get(heading)) for heading in headings)))
    return table_text(columns, lines, terminal)
