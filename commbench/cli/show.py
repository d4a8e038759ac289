"""`commbench show RUN...`: the table of a run again, or several backends side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from commbench.analysis.fit import FAMILY_VARIABLES, OF_BACKEND, by_window, varying
from commbench.core.errors import ConfigError, Unreadable
from commbench.core.states import Row, case_status, status_of_run
from commbench.core.terminal import (
    GAP,
    UNLIMITED_WIDTH,
    TableColumn,
    Terminal,
    printable,
    table_text,
)
from commbench.core.units import format_number, natural_key, plural, value_text
from commbench.core.variables import TABLE, is_number
from commbench.report.console import run_text
from commbench.report.footnotes import doubt_texts, is_unfinished
from commbench.report.nccl_tests import NcclTests
from commbench.report.osu import Osu
from commbench.report.table import TimeLine
from commbench.results.columns import hashable, row_order
from commbench.results.flags import DOUBT_MARK, different_bindings, doubts_of
from commbench.results.load import find_runs, load_run, run_tables
from commbench.results.parquet import plain_rows
from commbench.results.run_folder import resume_command

from .export import csv_text, shown_frame
from .options import CommandParser

CONSOLE = "console"
OSU = "osu"
NCCL_TESTS = "nccl_tests"
CSV = "csv"
# columns of a pivot
BESIDE = (*(each.name for each in TABLE if each.beside), "label")
# tables of their own
APART = tuple(name for name in FAMILY_VARIABLES if name not in (*BESIDE, "window", "pair"))


def show(words: list[str]) -> int:
    """Print runs in one of the forms; returns 0. Raises CommbenchError, ConfigError."""
    parser = CommandParser(
        prog="commbench show",
        description="The table of a run again; of several backends side by side.",
    )
    parser.add_argument(
        "paths", nargs="+", metavar="RUN", help="folders of runs, or folders with runs in them"
    )
    forms = (CONSOLE, OSU, NCCL_TESTS, CSV)
    parser.add_argument(
        "--as", dest="form", choices=forms, default=CONSOLE, help="default: console"
    )
    parser.add_argument(
        "--flags",
        action="store_true",
        help="one table a run, and below it each flag with its sizes, meaning and advice",
    )
    options = parser.parse_args(words)
    runs = [run for path in options.paths for run in find_runs(path)]
    if not runs:
        raise ConfigError(
            f"no run.json below {', '.join(options.paths)}; give the folder of a run or of several"
        )
    if options.form == CSV:
        sys.stdout.write(csv_text(shown_frame(runs, "cases"), "cases"))
        return 0
    terminal = Terminal.of(sys.stdout)
    rows = {run: rows_of(run) for run in runs}
    every = [row for run_rows in rows.values() for row in run_rows]
    several = len({row["backend"] for row in every}) > 1
    if options.form == CONSOLE and several and not options.flags:
        sys.stdout.write(f"{pivot_text(every, terminal, [*map(load_run, runs)], runs)}\n")
        return 0
    for run, run_rows in rows.items():
        text = shown_text(run, run_rows, options.form, terminal, options.flags)
        sys.stdout.write(f"{text}\n{printable(f'results: {run}')}\n\n")
    return 0


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The newest row of each case of a run, as its writers got it. Raises Unreadable where a run
    that was finished has none."""
    rows = [row for table in run_tables(run, "cases") for row in plain_rows(table)]
    record = load_run(run)
    if not rows and status_of_run(record) == "done" and record.get("cases"):
        raise Unreadable(
            f"{run} has no cases: its cases.parquet is gone; measure them again with:"
            f" {resume_command(run)}"
        )
    return list({row["case_id"]: row for row in rows}.values())


def shown_text(
    run: Path, rows: Sequence[Row], form: str, terminal: Terminal, flags: bool = False
) -> str:
    """The tables of one run."""
    record = load_run(run) | {"folder": str(run)}  # it may have been moved
    strange = [key for key in ("backend", "world") if not isinstance(record.get(key, {}), dict)]
    if strange:
        raise Unreadable(
            f"{run}/run.json is not as commbench writes it: {strange[0]} is not a mapping"
        )
    if "backend" not in record:
        return f"{run.name}: nothing was measured: {record.get('reason') or record.get('status')}"
    if form != CONSOLE:
        return printable((Osu() if form == OSU else NcclTests()).text(record, rows))
    soaks = {row["case_id"]: TimeLine() for row in rows if row["timing"] == "soak"}
    for case_id, line in soaks.items():
        for table in run_tables(run, "counters", where=[("case_id", "=", case_id)]):
            line.add(table.to_pydict())
    return run_text(record, list(rows), terminal, soaks, flags=flags)


def pivot_text(
    rows: Sequence[Row],
    terminal: Terminal,
    records: Sequence[Mapping[str, Any]] = (),
    folders: Sequence[Path] = (),
) -> str:
    """Sizes by backends, a table for each point of the other variables; launches are merged to
    their median. `records` and `folders` are those of the runs."""
    measured, shared_notes = _without_shared_env([row for row in rows if case_status(row) == "ok"])
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(measured, key=row_order):
        key = tuple(hashable(row[name]) for name in (*APART, *BESIDE))
        series.setdefault(key, []).append({**row, "message_bytes": row["message_bytes"] or 0})
    tables: dict[tuple[Any, ...], list[Row]] = {}
    for key, sizes in series.items():
        for window, group in by_window(sizes):
            tables.setdefault((*key[: len(APART)], window), []).extend(group)
    points = {key: dict(zip((*APART, "window"), key, strict=True)) for key in tables}
    headings = _headings(measured)
    parts = []
    for key, listed in sorted(tables.items(), key=lambda table: row_order(table[1][0])):
        point = points[key]
        rate = points[key]["window"] is not None
        named = ["layout", *(name for name in point if _differs(points.values(), point, name))]
        values = [
            f"{name} {value_text(point[name])}" for name in named if point[name] not in (None, ())
        ]
        unit = "algbw in GB/s" if rate else f"median in us{_meaning(listed)}"
        head = f"{', '.join([point['benchmark'], *values])}: {unit}"
        head = terminal.styled(terminal.paragraph(head), "bold")
        parts.append(f"{head}\n{_pivot(listed, headings, rate, terminal)}\n")
    lost = len(rows) - len(measured)
    notes = [*shared_notes, *filter(None, [different_bindings(records)])]
    notes += doubt_texts(measured, [*map(_short_path, folders)] or ["RUN"])
    notes += (
        [f"{plural(lost, 'case has', 'cases have')} no number: commbench report names why"]
        if lost
        else []
    )
    unfinished = sum(map(is_unfinished, measured))
    notes += (
        [
            f"{DOUBT_MARK} {plural(unfinished, 'case is', 'cases are')} not finished: commbench"
            " resume RUN measures what is missing"
        ]
        if unfinished
        else []
    )
    return "\n".join([*parts, *map(terminal.paragraph, notes)])


def _short_path(folder: Path) -> str:
    """The path from the working directory, where the folder is in it."""
    path = folder.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _without_shared_env(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The rows without the variables of `env` that all rows of their backend have, and a note on
    those of each backend."""
    shared: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        items = set(dict(row["env"] or {}).items())
        shared[row["backend"]] = shared.get(row["backend"], items) & items
    stripped: list[Row] = [
        {**row, "env": dict(dict(row["env"] or {}).items() - shared[row["backend"]])}
        for row in rows
    ]
    notes = [
        f"{backend}, all cases: env {value_text(dict(items))}"
        for backend, items in sorted(shared.items())
        if items
    ]
    return stripped, notes


def _meaning(rows: Sequence[Row]) -> str:
    """` of half a round trip`: what the times are of, where that is not the operation itself."""
    kinds = {row["median_of"] for row in rows} - {None, "collective"}
    return f" of {kinds.pop()}" if len(kinds) == 1 else ""


def _headings(rows: Sequence[Row]) -> dict[tuple[Any, ...], str]:
    """Values of BESIDE -> the heading of their column, with a line for each variable in which
    columns differ.

    A library or an option is named only where its backend has several.
    """
    names = [name for name in BESIDE if name == "backend" or name in varying(rows)]
    headings = {}
    for backend in {row["backend"] for row in rows}:
        own = [row for row in rows if row["backend"] == backend]
        shown = [name for name in names if name not in OF_BACKEND or name in varying(own)]
        for row in own:
            headings[_column_of(row)] = "\n".join(
                _heading_line(name, row[name]) for name in shown if row[name] not in (None, "", {})
            )
    return headings


def _heading_line(name: str, value: Any) -> str:
    """A value; a number with its name, as in `16 streams`."""
    if is_number(name):
        return plural(value, name.removesuffix("s"), name)
    return value_text(value)


def _column_of(row: Row) -> tuple[Any, ...]:
    return tuple(hashable(row[name]) for name in BESIDE)


def _differs(points: Iterable[Mapping[str, Any]], point: Mapping[str, Any], name: str) -> bool:
    """Whether another table of this operation has another value of `name`; of hosts, another table
    of this layout."""
    implied_by = ("benchmark", "layout") if name == "hosts" else ("benchmark",)
    alike = (
        other
        for other in points
        if all(other[variable] == point[variable] for variable in implied_by)
    )
    return name not in ("benchmark", "layout") and any(
        other[name] != point[name] for other in alike
    )


def _pivot(
    rows: Sequence[Row], headings: Mapping[tuple[Any, ...], str], rate: bool, terminal: Terminal
) -> str:
    """One table, or several one below the other where the terminal is too narrow for all
    columns."""
    cells: dict[tuple[str, int], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (natural_key(row["pair"]), row["message_bytes"])):
        line = cells.setdefault((row["pair"] or "-", row["message_bytes"]), {})
        line.setdefault(headings[_column_of(row)], []).append(row)
    pairs = len({pair for pair, _ in cells}) > 1
    names = [(*([pair] if pairs else []), str(size or "-")) for pair, size in cells]
    leading = [*([TableColumn("pair")] if pairs else []), TableColumn("message\nB", right=True)]
    columns = []
    shown_headings = {heading for line in cells.values() for heading in line}
    for heading in sorted(shown_headings, key=natural_key):
        texts = [_pivot_cell(line.get(heading, ()), rate) for line in cells.values()]
        marked = any(text.endswith(DOUBT_MARK) for text in texts)
        columns.append(
            (TableColumn(heading, right=True), texts if marked else [text[:-2] for text in texts])
        )
    room = (terminal.width or UNLIMITED_WIDTH) - sum(map(_width, leading, zip(*names, strict=True)))
    parts = []
    while columns:
        count = max(
            1, sum(total <= room for total in accumulate(_width(*column) for column in columns))
        )
        shown = columns[:count]
        columns = columns[count:]
        numbers = zip(*(texts for _, texts in shown), strict=True)
        lines = [(*name, *texts) for name, texts in zip(names, numbers, strict=True)]
        parts.append(table_text([*leading, *(column for column, _ in shown)], lines, terminal))
    return "\n".join(parts)


def _width(column: TableColumn, texts: Iterable[str]) -> int:
    return max(map(len, (*column.heading.split("\n"), *texts))) + GAP


def _pivot_cell(rows: Sequence[Row], rate: bool) -> str:
    """The median over launches, marked if the number of one of them is doubtful."""
    if not rows:
        return "-  "
    value = median(row["algbw_gb_per_s"] if rate else 1e6 * row["median_s"] for row in rows)
    is_marked = any(doubts_of(row) or is_unfinished(row) for row in rows)
    return f"{format_number(value)} {DOUBT_MARK if is_marked else ' '}"
