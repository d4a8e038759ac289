"""The one reader of result folders and of parquet files of cases, also while a run is still going on."""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.columns import TABLES, VARIABLES, arrow_schema, check_version
from commbench.core.errors import CommbenchError, ConfigError

if TYPE_CHECKING:
    import pandas as pd

KEYS = {  # columns that identify a row: the same row may be in a part and in the merged file
    "cases": ["run_id", "case_id"],
    "samples": ["run_id", "case_id", "phase", "block", "repetition", "rank"],
    "counters": ["run_id", "case_id", "rank", "t_ns", "name"],
}
NEEDED = {  # columns without which a file is not read; any other may be absent and is null
    table: tuple(column.name for column in columns if column.role != "result") for table, columns in TABLES.items()
} | {"cases": (*(column.name for column in VARIABLES), "run_id", "case_id", "status", "median_s")}
RUN = "commbench_run"  # metadata of a run's own cases.parquet: its run.json
RUNS = "commbench_runs"  # metadata of a saved baseline: the run.json of each of its launches


Columns = tuple[str, ...] | None  # None: all


class Damaged(CommbenchError):
    """Raised for a file that can't be read, in one line that names it."""


def load(*paths: str | Path, table: str = "cases", skip_damaged: bool = False) -> pd.DataFrame:
    """All rows of a table (cases, samples, counters) of all runs below the folders; of two attempts the newer one.

    Raises CommbenchError where nothing is found, a run has another schema version or a file can't be read. With
    `skip_damaged` a file that can't be read is left out with a UserWarning that names it.
    """
    if table not in TABLES:
        raise CommbenchError(f"table={table} is unknown; allowed: {', '.join(TABLES)}")
    runs = [run for path in paths or ("results",) for run in find_runs(path)]
    if not runs:
        searched = ", ".join(str(path) for path in paths or ("results",))
        raise CommbenchError(f"no run.json below {searched}; give the folder of a run or of several")

    def leave_out(error: Damaged) -> None:
        if not skip_damaged:
            raise CommbenchError(f"{error}; move it away, or use the rest with load(..., skip_damaged=True)") from error
        warnings.warn(f"{error}; it is left out", stacklevel=4)

    tables = []
    for run in runs:
        try:
            load_run(run)
        except Damaged as error:
            leave_out(error)  # the rows may be used: each parquet file names its schema version too
        tables += run_tables(run, table, damaged=leave_out)
    return frame_of(tables, table)


def find_runs(path: str | Path) -> list[Path]:
    """Folders with a run.json at or below the path, oldest first."""
    root = Path(path)
    runs = [root] if (root / "run.json").is_file() else [file.parent for file in root.rglob("run.json")]
    return sorted(runs, key=lambda run: run.name)


def load_run(path: str | Path) -> dict[str, Any]:
    """run.json of one run; raises Damaged for a broken one and CommbenchError for another schema version."""
    file = Path(path) / "run.json"
    try:
        run = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{file} can't be read: {first_line(error)}") from error
    if not isinstance(run, dict):
        raise Damaged(f"{file} is not the record of a run: it holds a {type(run).__name__}")
    check_version(run.get("schema_version"), str(file))
    return run


def first_line(error: Exception) -> str:
    """The first line of an error's message; its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---------------------------------------------------------------- cases with their run records


@dataclass(frozen=True)
class CaseSource:
    """The cases (pyarrow table) of a run folder or of a parquet file, and the run records that came with them."""

    path: Path
    cases: Any
    records: tuple[dict[str, Any], ...]
    has_version: bool = True

    @property
    def folder(self) -> Path | None:
        """The folder with the run's other tables; None for a file."""
        return self.path if self.path.is_dir() else None


def read_cases(paths: Iterable[str | Path], columns: Columns = None) -> tuple[list[CaseSource], dict[Path, str]]:
    """Sources with cases below the paths (folders with runs, parquet files), and path -> why it was left out.

    Files are read in parallel: pyarrow reads outside the interpreter's lock. Raises ConfigError for mixed units.
    """
    sources = dict.fromkeys(
        source for path in map(Path, paths) for source in (path.is_dir() and find_runs(path)) or [path]
    )
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as readers:
        results = dict(zip(sources, readers.map(lambda path: _read_source(path, columns), sources), strict=True))
    problems = {path: result for path, result in results.items() if isinstance(result, str)}
    return [result for result in results.values() if not isinstance(result, str)], problems


def _read_source(path: Path, columns: Columns) -> CaseSource | str:
    """The source, or why it can't be used, in one line that names it."""
    import pyarrow as pa

    try:
        source = _file_source(path, columns) if path.is_file() else _run_source(path, columns)
    except ConfigError:  # mixed units: the answer would be wrong, not incomplete
        raise
    except (CommbenchError, pa.ArrowException, OSError, ValueError, TypeError, RecursionError) as error:
        line = first_line(error)
        return line if str(path) in line else f"{path}: {line}"
    return source if source.cases.num_rows else f"{path} has no cases"


def _run_source(folder: Path, columns: Columns) -> CaseSource:
    import pyarrow as pa

    if not folder.is_dir():
        raise CommbenchError(f"{folder} does not exist")
    if not (folder / "run.json").is_file():
        raise CommbenchError(f"{folder} has no run.json in it or below it")
    record = load_run(folder)
    return CaseSource(folder, pa.concat_tables(run_tables(folder, "cases", columns)), (record,))


def _file_source(file: Path, columns: Columns) -> CaseSource:
    """A run's cases.parquet, a saved baseline, or a table from elsewhere with the same columns."""
    import pyarrow.parquet as pq

    cases = read_table(file, "cases", columns)
    metadata = pq.read_schema(file).metadata or {}
    records = json.loads(metadata.get(RUNS.encode(), b"[]"))
    records += [json.loads(metadata[RUN.encode()])] if RUN.encode() in metadata else []
    return CaseSource(file, cases, tuple(record for record in records if record), b"schema_version" in metadata)


# ---------------------------------------------------------------- parquet files


def _raise(error: Damaged) -> None:
    raise error


def run_tables(
    run: Path, table: str, columns: Columns = None, filters: Any = None, damaged: Callable[[Damaged], None] = _raise
) -> list[Any]:
    """The rows of the merged file and of the parts that are not in it yet, newest last; at least an empty table.

    `filters` are those of pyarrow; `damaged` is called for each file that can't be read.
    """
    rows: dict[Path, Any] = {}
    # parts first: a run that merges meanwhile has its rows in both places, never in neither
    parts = sorted((run / "parts").glob(f"*.{table}.parquet"))
    merged = run / f"{table}.parquet"
    for file in (*parts, merged):
        try:
            rows[file] = read_table(file, table, columns, filters)
        except FileNotFoundError:  # there is none, or it was merged meanwhile
            continue
        except Damaged as error:
            damaged(error)
    return [rows[file] for file in (merged, *parts) if file in rows] or [_schema(table, columns).empty_table()]


def read_table(file: Path, table: str, columns: Columns = None, filters: Any = None) -> Any:
    """The columns of one parquet file, with our types; a result that the file does not have is null.

    Raises FileNotFoundError, Damaged, CommbenchError for another schema version, ConfigError for another unit.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(table, columns)
    try:
        if not file.stat().st_size:
            raise Damaged(f"{file} is empty")
        with pq.ParquetFile(file) as opened:
            _check_schema(file, opened.schema_arrow, table)
            present = [name for name in schema.names if name in opened.schema_arrow.names]
            rows = opened.read(columns=present, use_threads=False) if filters is None else None
        rows = pq.read_table(file, columns=present, filters=filters) if rows is None else rows
        arrays = [_column(file, rows, field) for field in schema]
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(f"{file} can't be read: {first_line(error)}") from error
    if any(rows[name].null_count for name in ("run_id", "case_id") if name in present):
        raise Damaged(f"{file} has rows without run_id or case_id")
    return pa.Table.from_arrays(arrays, schema=schema)


@functools.cache
def _schema(table: str, columns: Columns) -> Any:
    """The types of the columns, without metadata."""
    import pyarrow as pa

    schema = arrow_schema(table)
    return pa.schema([pa.field(name, schema.field(name).type) for name in columns or schema.names])


def _check_schema(file: Path, schema: Any, table: str) -> None:
    """Raises ValueError for a table of another kind; CommbenchError, ConfigError like read_table."""
    metadata = schema.metadata or {}
    if b"schema_version" in metadata:
        version = metadata[b"schema_version"].decode(errors="replace")
        check_version(int(version) if version.isdigit() else version, str(file))
    missing = [name for name in NEEDED[table] if name not in schema.names]
    if missing:
        seen = ", ".join(schema.names[:6]) or "none"
        raise ValueError(f"it is not a table of {table}: it has the columns {seen}, but not {', '.join(missing)}")
    for column in TABLES[table]:
        field = schema.field(column.name) if column.name in schema.names else None
        unit = (field.metadata or {}).get(b"unit") if field is not None else None
        if unit is not None and unit.decode() != column.unit:
            raise ConfigError(
                f"{file}: column {column.name} is in {unit.decode() or 'no unit'}, commbench's in "
                f"{column.unit or 'no unit'}; mixed units are not compared: convert the column, then its metadata"
            )


def _column(file: Path, rows: Any, field: Any) -> Any:
    """One column with our type; null where the file does not have it."""
    import pyarrow as pa

    if field.name not in rows.column_names:
        return pa.nulls(len(rows), field.type)
    column = rows[field.name]
    if column.type == field.type:
        return column
    if pa.types.is_map(field.type):  # pandas writes a map as a list of pairs
        maps = [value if value is None else [tuple(pair) for pair in value] for value in column.to_pylist()]
        return pa.array(maps, type=field.type)
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise Damaged(f"{file}: column {field.name} is not of type {field.type}: {first_line(error)}") from error


def frame_of(tables: Sequence[Any], table: str = "cases") -> pd.DataFrame:
    """One data frame without repeated rows; the later table counts. Texts that repeat are held once."""
    import pyarrow as pa

    rows = pa.concat_tables(tables).combine_chunks()
    frame: pd.DataFrame = rows.to_pandas(
        maps_as_pydicts="strict", deduplicate_objects=True, split_blocks=True, self_destruct=True
    )
    return frame.drop_duplicates(KEYS[table], keep="last", ignore_index=True)
