"""`commbench export PATH...`: a table of results as CSV, for spreadsheets and other programs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commbench.cli.options import CommandParser, check_file, with_last_runs, write_file
from commbench.core.errors import ConfigError
from commbench.core.states import status_of_run
from commbench.core.terminal import first_line
from commbench.core.variables import NAMES
from commbench.results.columns import TABLES, arrow_schema, grouped, hashable
from commbench.results.jsonl import is_json, json_file
from commbench.results.load import find_sources, in_table_order, load_run, read_rows, row_dicts
from commbench.results.parquet import COMPRESSION, parquet_metadata
from commbench.results.run_folder import replace_file, resume_command
from commbench.results.table_files import json_table
from commbench.runtime.folder_lock import is_measured_into
from commbench.runtime.printing import print_data

if TYPE_CHECKING:
    import pandas as pd

STDOUT = "-"
RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\n")
LINE_BREAK = re.compile("\r\n?")
QUOTE = "'"
ALL = "all"
# of cases, beside the variables in which rows differ that these do not tell apart
DEFAULT_COLUMNS = (
    "benchmark",
    "backend",
    "layout",
    "pair",
    "message_bytes",
    "status",
    "median_s",
    "ci_low_s",
    "ci_high_s",
    "algbw_gb_per_s",
    "busbw_gb_per_s",
    "warnings",
)
OF_LAUNCHES = "run_id"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


def export(words: list[str]) -> int:
    """Write one table of all runs below the paths; returns 0.

    Raises ConfigError for wrong options and a file that can't be written, CommbenchError like load.
    """
    parser = CommandParser(
        prog="commbench export",
        description="Write a table of results as CSV.\n\n"
        "  commbench export results --csv results.csv",
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="folders with runs; last: the runs of the newest command",
    )
    add("--csv", default=STDOUT, metavar="FILE", help="the file to write (default: stdout)")
    add("--table", default="cases", choices=tuple(TABLES), help="default: cases")
    add(
        "--columns",
        metavar="A,B,C",
        help="these columns in this order, or all (default: twelve columns of cases, and the"
        " variables that tell the other rows apart)",
    )
    add("--force", action="store_true", help="replace FILE where it exists")
    add(
        "--parquet",
        action="store_true",
        help="instead: write parquet files into the folders of runs that were measured without"
        " pyarrow, and stored JSON lines",
    )
    options = parser.parse_args(words)
    options.paths = with_last_runs(options.paths)
    if options.parquet:
        return _export_parquet(options.paths)
    allowed = [column.name for column in TABLES[options.table]]
    columns = None
    if options.columns is not None:
        columns = list(dict.fromkeys(name.strip() for name in options.columns.split(",")))
        columns = allowed if columns == [ALL] else columns
    if unknown := ", ".join(repr(name) for name in columns or () if name not in allowed):
        raise ConfigError(
            f"--columns: {unknown} is not in {options.table}; allowed: {ALL}, {', '.join(allowed)}"
        )
    if options.csv != STDOUT:
        check_file("--csv", options.csv)
        if Path(options.csv).exists() and not options.force:
            raise ConfigError(
                f"--csv {options.csv} exists; choose another file, or add --force to replace it"
            )
    frame = _shown_frame(options.paths, options.table, columns)
    text = csv_text(frame, options.table)
    if options.csv == STDOUT:
        print_data(text)
        return 0
    write_file("--csv", options.csv, text, replace=options.force)
    print(f"{len(frame)} rows of {options.table}: {options.csv}")
    return 0


def _export_parquet(paths: Sequence[Path | str]) -> int:
    for run in find_sources(paths):
        if not is_json(run):
            print(f"{run}: nothing to do, it has no JSON lines, or parquet files beside them")
            continue
        if is_measured_into(run) or status_of_run(load_run(run)) == "running":
            raise ConfigError(
                f"{run} has not ended; wait for its end, or finish it with: {resume_command(run)}"
            )
        print(f"{run}: {_write_parquet(run)} cases in parquet files")
    return 0


def _write_parquet(run: Path) -> int:
    """Parquet files beside the JSON lines of a run; returns the number of cases. Raises ConfigError
    where they can't be written."""
    import pyarrow.parquet as pq

    metadata = parquet_metadata(load_run(run))
    rows = {table: json_table(run, table) for table in TABLES if json_file(run, table).exists()}
    try:
        for table in sorted(rows, reverse=True):  # the cases come last, as in a run
            schema = arrow_schema(table).with_metadata(metadata)
            content = io.BytesIO()
            pq.write_table(
                rows[table].cast(schema),
                content,
                compression=COMPRESSION[table],
                write_page_checksum=True,
            )
            replace_file(run / f"{table}.parquet", content.getbuffer())
    except OSError as error:
        raise ConfigError(f"{run} can't be written: {first_line(error)}") from error
    return len(rows["cases"])


def _shown_frame(
    paths: Sequence[Path | str], table: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """The rows, cases in the order of tables; without `columns` those that people look at."""
    frame = read_rows(paths, table)
    frame = in_table_order(frame) if table == "cases" else frame
    return frame[list(columns or _main_columns(frame, table))]


def csv_text(frame: pd.DataFrame, table: str) -> str:
    """The rows as CSV.

    Integers stay integers, null is an empty cell, lists and maps are JSON, times are UTC, line
    breaks are newlines. A text that a spreadsheet would take for a formula gets a single quote
    before it, and so does one that begins with that quote: removing one leading quote restores
    every text.
    """
    kinds = {column.name: column.kind for column in TABLES[table]}
    written = frame.copy()
    for name in map(str, written.columns):
        column = written[name]
        kind = kinds[name]
        if kind == "integer":
            written[name] = column.astype("Int64")  # beside a null pandas holds them as floats
        elif kind == "time":
            written[name] = column.dt.strftime(TIME_FORMAT)
        elif kind == "text":
            written[name] = column.map(
                {value: _harmless(value) for value in column.dropna().unique()}
            )
        elif kind in ("texts", "numbers", "integers"):
            written[name] = column.map(
                lambda values: json.dumps(np.asarray(values).tolist()), na_action="ignore"
            )
        elif kind == "map":
            written[name] = column.map(
                lambda values: json.dumps(values, sort_keys=True), na_action="ignore"
            )
    return written.to_csv(index=False, lineterminator="\n")


def _main_columns(frame: pd.DataFrame, table: str) -> list[str]:
    """DEFAULT_COLUMNS of cases and what else tells their rows apart; all of another table."""
    if table != "cases":
        return [column.name for column in TABLES[table]]
    first = [name for name in DEFAULT_COLUMNS if name in NAMES]
    rest = [name for name in DEFAULT_COLUMNS if name not in NAMES]
    more = _telling_apart(frame, [name for name in NAMES if name not in first], among=first)
    launches = _telling_apart(frame, [OF_LAUNCHES], among=[*first, *more])
    return [*first, *more, *launches, *rest]


def _telling_apart(frame: pd.DataFrame, names: Sequence[str], among: Sequence[str]) -> list[str]:
    """Those of the names in which rows differ that are alike in the columns `among`."""
    alike = grouped(row_dicts(frame), lambda row: tuple(hashable(row[name]) for name in among))
    return [
        name
        for name in names
        if any(len({hashable(row[name]) for row in rows}) > 1 for rows in alike.values())
    ]


def _harmless(text: str) -> str:
    """The text of a cell that no spreadsheet runs as a formula.

    Line breaks become newlines: CSV writers do not quote a lone carriage return, and readers end
    the line there.
    """
    text = LINE_BREAK.sub("\n", text)
    risky = text.startswith((*RUN_BY_SPREADSHEETS, QUOTE)) or text.lstrip().startswith(
        RUN_BY_SPREADSHEETS
    )
    return f"{QUOTE}{text}" if risky else text
