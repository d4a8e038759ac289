"""`commbench show RUN...`: the table of a run again, or several runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path

from commbench.core.errors import ConfigError, Unreadable
from commbench.core.states import status_of_run
from commbench.core.terminal import Terminal, printable
from commbench.report.run_text import run_text
from commbench.report.showing import forms, new_texts
from commbench.report.side_by_side import belong_together, side_by_side
from commbench.results.load import find_runs, load_run
from commbench.results.recorded import recorded_counters, recorded_rows
from commbench.results.row import Row
from commbench.results.run_folder import resume_command

from .options import CommandParser, show_command, with_last_runs

CONSOLE = "console"


def show(words: list[str]) -> int:
    """Print runs in one of the forms; returns 0. Raises CommbenchError, ConfigError."""
    parser = CommandParser(
        prog="commbench show",
        description="The table of a run; backends, labels or environments side by side.\n\n"
        "  commbench show last --flags",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="RUN",
        help="folders of runs, or with runs in them; last: the runs of the newest command",
    )
    parser.add_argument(
        "--as", dest="form", choices=(CONSOLE, *forms()), default=CONSOLE, help="default: console"
    )
    parser.add_argument(
        "--flags",
        action="store_true",
        help="one table a run, and below it each flag with its sizes, meaning and advice",
    )
    parser.add_argument(
        "--intervals",
        action="store_true",
        help="every interval of the soaks of streams, as iperf3 prints them",
    )
    options = parser.parse_args(words)
    runs = [run for path in with_last_runs(options.paths) for run in find_runs(path)]
    if not runs:
        raise ConfigError(
            f"no run.json below {', '.join(options.paths)}; give the folder of a run or of several"
        )
    terminal = Terminal.of(sys.stdout)
    rows = {run: rows_of(run) for run in runs}
    is_plain = options.form == CONSOLE and not (options.flags or options.intervals)
    if is_plain and belong_together([*rows.values()]):
        every = [*chain(*rows.values())]
        sys.stdout.write(
            f"{side_by_side(every, terminal, [*map(load_run, runs)], show_command(runs))}\n"
        )
        return 0
    for run, run_rows in rows.items():
        text = shown_text(
            run, run_rows, options.form, terminal, flags=options.flags, intervals=options.intervals
        )
        sys.stdout.write(f"{text}\n{printable(f'results: {run}')}\n\n")
    return 0


def rows_of(run: Path) -> list[Row]:
    """The newest row of each case of a run. Raises Unreadable where a run that was finished has
    none."""
    rows = list(recorded_rows(run).values())
    record = load_run(run)
    if not rows and status_of_run(record) == "done" and record.get("cases"):
        raise Unreadable(
            f"{run} has no cases: its cases.parquet is gone; measure them again with:"
            f" {resume_command(run)}"
        )
    return rows


def shown_text(
    run: Path,
    rows: Sequence[Row],
    form: str,
    terminal: Terminal,
    *,
    flags: bool = False,
    intervals: bool = False,
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
        return printable(forms()[form](record, rows))
    texts = new_texts()
    for each, row in product(texts, rows):
        each.add(row, partial(recorded_counters, run, row.case_id))
    return run_text(record, list(rows), terminal, texts, flags=flags, intervals=intervals)
