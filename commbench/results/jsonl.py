"""JSON lines: cases.jsonl for programs that read line by line, and all tables where pyarrow is not
installed."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from commbench.core.errors import Unreadable, Unsaved
from commbench.core.extras import how_to_install, is_installed
from commbench.core.foreign import plain_file
from commbench.core.states import status_of_run
from commbench.core.terminal import first_line, print_error
from commbench.results.columns import SCHEMA_VERSION, TABLES, check_version
from commbench.results.run_folder import RECORD, json_text, write_json

from .durable_files import DurableFiles, opening, retry_s
from .row import plain_values
from .writer import Entry

CASES_JSONL = "cases.jsonl"
KINDS: Mapping[str, Any] = {
    "text": str, "integer": int, "number": int | float, "flag": bool, "texts": list,
    "numbers": list, "integers": list, "map": dict, "time": str,
}  # fmt: skip
TIMES = tuple(column.name for column in TABLES["cases"] if column.kind == "time")


@dataclass
class Jsonl:
    """A Writer of JSON lines. A later row of a case follows the earlier one: the last line of a
    case_id counts.

    Each line has the columns of cases.parquet and the run's schema_version. pandas.read_json(FILE,
    lines=True, dtype=False) reads it, with times as text; without dtype=False a label of digits
    becomes a number.
    """

    tables: ClassVar[Collection[str]] = ("cases",)

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        for table in self.tables:
            path = json_file(folder, table)
            with opening(path), path.open("a+b") as file:
                # a full disk or a power failure may have cut off the last line of an earlier start
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        self._files = DurableFiles(Path(folder))

    def cases(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._append("cases", {"schema_version": SCHEMA_VERSION, **plain_values(entry.row)})

    def end(self, run: Mapping[str, Any]) -> None:
        """Raises Unsaved where lines are missing from the file."""
        files = self._files
        if files.retry(retry_s(status_of_run(run))) and not files.dropped and not files.gone():
            return
        count = (
            bytes(files.waiting[CASES_JSONL].content).count(b"\n")
            if CASES_JSONL in files.waiting
            else 0
        )
        refuge = files.rescue({}) if count else None
        rest = f"; {count} lines of it are in {refuge / CASES_JSONL}" if refuge is not None else ""
        why = files.error or "it was there, and has been removed"
        raise Unsaved(f"{files.folder / CASES_JSONL} is not complete ({why}){rest}")

    def _append(self, table: str, values: Mapping[str, Any]) -> None:
        self._files.append(f"{table}.jsonl", line(values).encode())


@dataclass
class JsonStore(Jsonl):
    """A Writer of all that a run keeps, where pyarrow is not installed: run.json, cases.jsonl, and
    a line of columns for the samples and counters of each visit."""

    tables = tuple(TABLES)

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        super().begin(run, folder)
        if not is_installed("pyarrow"):
            print_error(f"{how_to_install('pyarrow')}; results are stored as JSON lines")
        with opening(Path(folder)):
            write_json(Path(folder) / RECORD, run)

    def cases(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            for table, columns in (("samples", entry.samples), ("counters", entry.counters)):
                if columns:
                    self._append(table, {"schema_version": SCHEMA_VERSION, **columns})
        # the cases come last: a reader that finds them finds their samples and counters too
        super().cases(entries)

    def end(self, run: Mapping[str, Any]) -> None:
        self._files.put(RECORD, json_text(run).encode())
        super().end(run)


def line(values: Mapping[str, Any]) -> str:
    """One object with its newline; NaN and infinities become null."""
    return json.dumps(_json_value(values), allow_nan=False) + "\n"


def _json_value(value: Any) -> Any:
    """The value in types of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.isoformat() if isinstance(value, datetime) else value


# ---------------------------------------------------------------- read back


def json_file(folder: str | Path, table: str) -> Path:
    return Path(folder) / f"{table}.jsonl"


def is_json(folder: Path) -> bool:
    """Whether all of a run is in JSON lines: beside parquet, they are cases for other programs."""
    return json_file(folder, "samples").exists() and not (
        (folder / "cases.parquet").exists() or any(folder.glob("parts/*.cases.parquet"))
    )


def json_rows(folder: str | Path) -> list[dict[str, Any]]:
    """The columns of the newest row of each case, with times as datetime. Raises OSError and
    Unreadable."""
    rows = {row["case_id"]: row for row in _lines(json_file(folder, "cases"), "cases")}
    for row in rows.values():
        row |= {name: datetime.fromisoformat(row[name]) for name in TIMES if row.get(name)}
    return list(rows.values())


def json_columns(folder: str | Path, table: str) -> Iterator[dict[str, list[Any]]]:
    """The samples or counters of one visit after another. Raises OSError and Unreadable."""
    return _lines(json_file(folder, table), table)


def _lines(file: Path, table: str) -> Iterator[dict[str, Any]]:
    """Without the last one where it was cut off. A line has one case, or lists of samples or
    counters."""
    with plain_file(file) as opened:
        for number, text in enumerate(opened, 1):
            if not text.endswith(b"\n"):
                return
            try:
                values = json.loads(text)
                check_version(values.pop("schema_version", None), str(file))
                _check_kinds(values, table)
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise Unreadable(f"{file} line {number}: {first_line(error)}") from error
            yield values


def _check_kinds(values: Mapping[str, Any], table: str) -> None:
    """Raises TypeError for a column with a value that is not of its kind."""
    for column in TABLES[table]:
        value = values.get(column.name)
        for each in [value] if table == "cases" else value or ():
            # True is an integer to Python
            is_right = isinstance(each, KINDS[column.kind]) and (
                column.kind == "flag" or not isinstance(each, bool)
            )
            if each is not None and not is_right:
                raise TypeError(
                    f"column {column.name} is not of kind {column.kind}: it is {each!r:.80}"
                )
