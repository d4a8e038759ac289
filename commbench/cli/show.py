"""`commbench show RUN...`: the table of an old run again, or several backends side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.terminal import Column, Terminal, printable, table_text
from commbench.core.units import format_number, value_text
from commbench.report.fit import COMPANIONS, SHARED, by_window, hashable, varying
from commbench.report.load import find_runs, load_run, read_rows, run_tables
from commbench.writers.console import row_order, run_text
from commbench.writers.nccl_tests import NcclTests
from commbench.writers.osu import Osu
from commbench.writers.parquet import plain_rows
from commbench.writers.table import TimeLine

from .options import Options, write_stdout

Row = Mapping[str, Any]
CONSOLE, OSU, NCCL_TESTS, CSV = "console", "osu", "nccl_tests", "csv"
# what the columns of a pivot are named by: whose numbers they are
BESIDE = ("backend", *COMPANIONS["backend"], "label", "interface", "cuda_ipc", "device")
APART = tuple(name for name in SHARED if name not in (*BESIDE, "window"))  # what makes a table of its own


def command(words: list[str]) -> int:
    """Print runs in one of the forms; exit status 0. Raises CommbenchError, ConfigError."""
    options = _parser().parse_args(words)
    runs = [run for path in options.paths for run in find_runs(path)]
    if not runs:
        raise ConfigError(f"no run.json below {', '.join(options.paths)}; give the folder of a run or of several")
    if options.form == CSV:
        from .export import csv_text

        write_stdout(csv_text(read_rows(runs), "cases"))
        return 0
    terminal = Terminal.of(sys.stdout)
    rows = {run: rows_of(run) for run in runs}
    every = [row for one in rows.values() for row in one]
    if options.form == CONSOLE and len({row["backend"] for row in every}) > 1:
        write_stdout(f"{pivot_text(every, terminal)}\n")
        return 0
    for run, found in rows.items():
        write_stdout(f"{shown_text(run, found, options.form, terminal)}\n{printable(f'results: {run}')}\n\n")
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
    """Size by backend, a table for each point of the other variables; only launches are merged, to their median."""
    measured = [row for row in rows if row["status"] == "ok"]
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(measured, key=row_order):
        key = tuple(hashable(row[name]) for name in (*APART, *BESIDE))
        series.setdefault(key, []).append({**row, "message_bytes": row["message_bytes"] or 0})
    tables: dict[tuple[Any, ...], list[list[Row]]] = {}
    for key, found in series.items():
        for window, group in by_window(found):
            tables.setdefault((*key[: len(APART)], window), []).append(group)
    points = {key: dict(zip((*APART, "window"), key, strict=True)) for key in tables}
    heads = [name for name in BESIDE if name == "backend" or name in varying(measured)]
    parts = []
    for key, groups in sorted(tables.items(), key=lambda table: row_order(table[1][0][0])):
        point, rate = points[key], points[key]["window"] is not None
        named = ["layout", *(name for name in point if _differs(points.values(), point, name))]
        values = [f"{name} {value_text(point[name])}" for name in named if point[name] not in (None, ())]
        head = f"{', '.join([point['benchmark'], *values])}: {'algbw in GB/s' if rate else 'median in us'}"
        head = terminal.styled(terminal.paragraph(head), "bold")
        parts.append(f"{head}\n{_pivot(groups, heads, rate, terminal)}\n")
    lost = len(rows) - len(measured)
    return "\n".join([*parts, *([f"{lost} cases have no number: commbench report names why"] if lost else [])])


def _differs(points: Iterable[Mapping[str, Any]], point: Mapping[str, Any], name: str) -> bool:
    """Whether another table of this operation differs in it; in hosts, also of this layout, which implies them."""
    implied_by = ("benchmark", "layout") if name == "hosts" else ("benchmark",)
    alike = (other for other in points if all(other[variable] == point[variable] for variable in implied_by))
    return name not in ("benchmark", "layout") and any(other[name] != point[name] for other in alike)


def _pivot(groups: Sequence[Sequence[Row]], names: Sequence[str], rate: bool, terminal: Terminal) -> str:
    cells: dict[int, dict[str, list[float]]] = {}
    for row in (row for group in groups for row in group):
        heading = " ".join(value_text(row[name]) for name in names if row[name] not in (None, "", {}))
        value = row["algbw_gb_per_s"] if rate else 1e6 * row["median_s"]
        cells.setdefault(row["message_bytes"], {}).setdefault(heading, []).append(value)
    headings = sorted({heading for one in cells.values() for heading in one})
    columns = [Column("message\nB", right=True), *(Column(heading, right=True) for heading in headings)]
    lines = []
    for size, found in sorted(cells.items()):
        middle = {heading: median(values) for heading, values in found.items()}
        lines.append((str(size or "-"), *(format_number(middle.get(heading)) for heading in headings)))
    return table_text(columns, lines, terminal)
