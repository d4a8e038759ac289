"""`commbench report PATH...`: the answers on the terminal, and with --html all of it as one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.core.errors import ConfigError
from commbench.core.terminal import Terminal, printable
from commbench.report.load import find_runs
from commbench.report.summary import read_results, summarise_results, summary_text

from .options import Options, check_not_folder, from_1, write_file, write_stdout
from .show import CONSOLE, rows_of, shown_text

if TYPE_CHECKING:
    import pandas as pd

TOP = 30
MOST_TABLES = 3  # of single runs


def command(words: list[str]) -> int:
    """Print the answers, write the page; exit status 0. Raises ConfigError where there is nothing to report or the
    file can't be written."""
    options = _parser().parse_args(words)
    if options.html is not None:
        folder = Path(options.html).parent
        check_not_folder("--html", Path(options.html))
        if not folder.is_dir():
            raise ConfigError(f"--html {options.html}: there is no folder {folder}; make it, or choose another")
    summary = summarise_results(read_results(options.paths, options.benchmark))
    for line in summary.results.problems:
        print(printable(f"left out: {line}"), file=sys.stderr)
    if options.html is not None:
        from commbench.report.distributions import read_raw_data
        from commbench.report.page import page

        write_file("--html", Path(options.html), page(summary, read_raw_data(summary.results)))
    for folder in _alone(summary.results.cases, options.paths):
        rows = [row for row in rows_of(folder) if options.benchmark in (None, row["benchmark"])]
        if rows or options.benchmark is None:
            write_stdout(shown_text(folder, rows, CONSOLE, Terminal.of(sys.stdout)) + "\n")
    write_stdout(summary_text(summary, options.top) + (f"\npage: {options.html}\n" if options.html is not None else ""))
    return 0


def _alone(cases: pd.DataFrame, paths: Sequence[str]) -> list[Path]:
    """The runs whose own tables are the result, for there is nothing to choose between: one backend, a few runs."""
    runs = [run for path in paths if Path(path).is_dir() for run in find_runs(path)]
    return runs if cases["backend"].nunique() == 1 and len(runs) <= MOST_TABLES else []


def _parser() -> argparse.ArgumentParser:
    parser = Options(prog="commbench report", description="Answers from results: tables here, pictures with --html.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="folders with runs, or parquet files of cases")
    parser.add_argument("--html", metavar="FILE", help="write one page with pictures; it needs no network")
    parser.add_argument("--benchmark", metavar="NAME", help="only this benchmark")
    parser.add_argument("--top", type=from_1, default=TOP, help=f"rows of a table on the terminal (default {TOP})")
    return parser
