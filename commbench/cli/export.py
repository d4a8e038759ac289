"""`commbench export`: result tables as CSV, for spreadsheets and other programs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.columns import TABLES
from commbench.core.errors import ConfigError
from commbench.core.terminal import printable
from commbench.report.load import read_rows

from .options import Options, check_not_folder, write_file, write_stdout

if TYPE_CHECKING:
    import pandas as pd

STDOUT = "-"
RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\n")
LINE_BREAK = re.compile("\r\n?")
QUOTE = "'"
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


def command(words: list[str]) -> int:
    """Write one table of all runs below the paths; the exit status.

    Raises ConfigError for wrong options and a file that can't be written, CommbenchError like load.
    """
    options = _parser().parse_args(words)
    columns = _columns(options.table, options.columns)
    if options.csv != STDOUT:
        check_not_folder("--csv", Path(options.csv))
        if Path(options.csv).exists() and not options.force:
            raise ConfigError(f"--csv {options.csv} exists; choose another file, or add --force to replace it")
    frame = read_rows(options.paths, options.table)[columns]
    text = csv_text(frame, options.table)
    if options.csv == STDOUT:
        write_stdout(printable(text) if sys.stdout.isatty() else text)
        return 0
    write_file("--csv", Path(options.csv), text, replace=options.force)
    print(f"{len(frame)} rows of {options.table}: {options.csv}")
    return 0


def csv_text(frame: pd.DataFrame, table: str) -> str:
    """The rows under plain column names, which carry their unit.

    Integers stay integers, null is an empty cell, a list is joined by spaces, a map is JSON, times are UTC, line breaks
    are newlines. A text that a spreadsheet would take for a formula gets a single quote before it, and so does one that
    begins with that quote: whoever strips one leading quote from texts has what was measured.
    """
    kinds = {column.name: column.kind for column in TABLES[table]}
    written = frame.copy()
    for name in map(str, frame.columns):
        written[name] = _cells(frame[name], kinds[name])
    return written.to_csv(index=False, lineterminator="\n")


def _parser() -> argparse.ArgumentParser:
    parser = Options(prog="commbench export", description="Write a table of results as CSV.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="folder of a run, or of several")
    parser.add_argument("--csv", required=True, metavar="FILE", help="the file to write; - is stdout")
    parser.add_argument("--table", default="cases", choices=tuple(TABLES), help="cases, unless told otherwise")
    parser.add_argument("--columns", metavar="A,B,C", help="these columns in this order; all, unless told otherwise")
    parser.add_argument("--force", action="store_true", help="replace FILE where it exists")
    return parser


def _columns(table: str, chosen: str | None) -> list[str]:
    allowed = [column.name for column in TABLES[table]]
    names = allowed if chosen is None else list(dict.fromkeys(name.strip() for name in chosen.split(",")))
    unknown = [repr(name) for name in names if name not in allowed]
    if unknown:
        raise ConfigError(f"--columns: {', '.join(unknown)} is not in {table}; allowed: {', '.join(allowed)}")
    return names


def _cells(column: pd.Series[Any], kind: str) -> pd.Series[Any]:
    """A column as it is to be written; only texts, lists and maps can hold what a user has typed."""
    if kind == "integer":
        return column.astype("Int64")  # beside a null pandas holds them as floats
    if kind == "time":
        times: pd.Series[Any] = column.dt.strftime(TIME)
        return times
    if kind == "text":
        written = {value: _harmless(value) for value in column.dropna().unique()}
        return column.map(written)
    if kind == "texts":
        return column.map(lambda values: _harmless(" ".join(values)), na_action="ignore")
    if kind == "map":
        return column.map(lambda values: json.dumps(values, sort_keys=True), na_action="ignore")
    return column


def _harmless(text: str) -> str:
    """The text, with a single quote where a spreadsheet would calculate or where it begins with one already.

    Line breaks become newlines: a carriage return alone is not quoted by writers of CSV, and ends a line for readers.
    """
    text = LINE_BREAK.sub("\n", text)
    risky = text.startswith((*RUN_BY_SPREADSHEETS, QUOTE)) or text.lstrip().startswith(RUN_BY_SPREADSHEETS)
    return f"{QUOTE}{text}" if risky else text
