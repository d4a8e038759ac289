"""`commbench report PATH...`: the answers on the terminal, and with --html all of it as one page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from commbench.core.errors import ConfigError
from commbench.core.text import printable
from commbench.report.summary import read_results, summarise_results, summary_text

from .options import Options

TOP = 30


def command(words: list[str]) -> int:
    """Print the answers, write the page; exit status 0. Raises ConfigError where there is nothing to report or the
    file can't be written."""
    options = _parser().parse_args(words)
    if options.html is not None:
        _check(Path(options.html))
    summary = summarise_results(read_results(options.paths, options.benchmark))
    for line in summary.results.problems:
        print(printable(f"left out: {line}"), file=sys.stderr)
    if options.html is not None:
        from commbench.report.distributions import read_raw_data
        from commbench.report.page import page

        _write(Path(options.html), page(summary, read_raw_data(summary.results)))
    _print(
        printable(summary_text(summary, options.top))
        + (f"\npage: {options.html}\n" if options.html is not None else "")
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Options(prog="commbench report", description="Answers from results: tables here, pictures with --html.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="folders with runs, or parquet files of cases")
    parser.add_argument("--html", metavar="FILE", help="write one page with pictures; it needs no network")
    parser.add_argument("--benchmark", metavar="NAME", help="only this benchmark")
    parser.add_argument("--top", type=_count, default=TOP, help=f"rows of a table on the terminal (default {TOP})")
    return parser


def _count(word: str) -> int:
    if not word.isdigit() or not int(word):
        raise argparse.ArgumentTypeError(f"{word} is not a whole number from 1 on")
    return int(word)


def _check(file: Path) -> None:
    if file.is_dir():
        raise ConfigError(f"--html {file} is a folder; name a file in it")
    if not file.parent.is_dir():
        raise ConfigError(f"--html {file}: there is no folder {file.parent}; make it, or choose another")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"--html {file} can't be written: {error.strerror}; choose another file") from error


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
