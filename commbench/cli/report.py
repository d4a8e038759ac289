"""`commbench report PATH...`: what the results say, also as one page, a figure or Markdown."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path

from commbench.analysis.headline import scope_text
from commbench.core.annexes import registered
from commbench.core.errors import ConfigError
from commbench.core.terminal import Terminal, printable
from commbench.report.distributions import RawData, read_raw_data
from commbench.report.numbers import number_sections
from commbench.report.reporting import Reporting
from commbench.report.section import Section, report_text
from commbench.report.sections import ANSWERS, sections
from commbench.report.side_by_side import belong_together, side_by_side
from commbench.report.summary import Summary, read_results
from commbench.results.load import load_run
from commbench.runtime.folder_lock import is_measured_into

from .options import CommandParser, check_file, whole_number, with_last_runs, write_file
from .show import CONSOLE, rows_of, shown_text

FILES = {"html": "page", "png": "figure", "svg": "figure"}
MOST_TABLE_ROWS = 30
MOST_TABLES = 3  # of single runs


def report(words: list[str]) -> int:
    """Print the answers and write the files; returns 0.

    Raises ConfigError where there is nothing to report or the file can't be written.
    """
    parser = CommandParser(
        prog="commbench report",
        description="What the results say: tables here, figures on a page.\n\n"
        "  commbench report results --html report.html\n"
        "  commbench report results --benchmark all_reduce --png all_reduce.png",
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="folders with runs, or parquet files; last: the runs of the newest command",
    )
    add("--html", metavar="FILE", help="write one page with figures; it needs no network")
    add("--png", metavar="FILE", help="write the first figure of the page")
    add("--svg", metavar="FILE", help="the same as SVG")
    add(
        "--markdown",
        action="store_true",
        help="print the table of the answers as Markdown; with --benchmark also that of all sizes",
    )
    add("--benchmark", metavar="NAME", help="only this benchmark")
    add(
        "--top",
        type=whole_number(1),
        default=MOST_TABLE_ROWS,
        help=f"rows of a table on the terminal (default {MOST_TABLE_ROWS})",
    )
    parser.set_defaults(asked=None)
    for each in chain.from_iterable(feature.options for feature in registered(Reporting)):
        add(f"--{each.name}", dest="asked", type=each.sections, metavar="NAME", help=each.meaning)
    options = parser.parse_args(words)
    options.paths = with_last_runs(options.paths)
    files = {form: name for form in FILES if (name := getattr(options, form)) is not None}
    for form, name in files.items():
        check_file(f"--{form}", name)
    results = read_results(options.paths, options.benchmark)
    summary = Summary(results, is_measured_into)
    for line in results.problems:
        print(printable(f"left out: {line}"), file=sys.stderr)
    terminal = Terminal.of(sys.stdout)
    asked = [*options.asked(summary)] if options.asked else []
    if asked and not files and not options.markdown:
        sys.stdout.write(report_text(asked, options.top, terminal))
        return 0
    listed = [*asked, *sections(summary, read_raw_data(results) if files else RawData())]
    for form, name in files.items():
        write_file(f"--{form}", name, _content(form, summary, listed))
    if options.markdown:
        sized = number_sections(summary.combined) if options.benchmark is not None else ()
        shown = [
            *chain.from_iterable(each.headline for each in listed),
            *chain.from_iterable(each.tables for each in sized),
        ]
        notes = filter(None, (scope_text(summary.combined), summary.interval_note()))
        print(printable("\n\n".join([*(table.markdown for table in shown), *notes])))
        return 0
    if files:
        sys.stdout.write(report_text(listed[:1], options.top, terminal))
        print("\n".join(f"{FILES[form]}: {name}" for form, name in files.items()))
        return 0
    if listed[0].title == ANSWERS and len({row.backend for row in results.rows}) == 1:
        sys.stdout.write(_own_tables(results.folders.values(), options.benchmark, terminal))
    sys.stdout.write(report_text(listed, options.top, terminal))
    return 0


def _content(form: str, summary: Summary, listed: Sequence[Section]) -> str | bytes:
    """The page, or its first figure. Raises ConfigError where it has none."""
    if form == "html":
        from commbench.report.page import page

        return page(summary, listed)
    figure = next(chain.from_iterable(section.figures() for section in listed), None)
    if figure is None:
        raise ConfigError(
            f"--{form}: these results have no figure; measure several sizes, or all pairs"
        )
    return figure.file(form)


def _own_tables(runs: Collection[Path], benchmark: str | None, terminal: Terminal) -> str:
    """Runs of one backend side by side where they differ in a setting, else the tables of a few."""
    rows = {
        run: [row for row in rows_of(run) if benchmark in (None, row.benchmark)] for run in runs
    }
    if belong_together([*rows.values()]):
        every = [*chain(*rows.values())]
        return f"{side_by_side(every, terminal, [*map(load_run, runs)])}\n\n"
    few = rows if len(runs) <= MOST_TABLES else {}
    texts = [
        shown_text(run, own, CONSOLE, terminal)
        for run, own in few.items()
        if own or benchmark is None
    ]
    return "".join(f"{text}\n" for text in texts)
