"""The one reader of result folders and of parquet files of cases, also while a run is still going
on.

The stored tables have lists and maps, which pandas can't hash, and nulls, for which it would turn
integers into floats: commbench.load returns them in a form that every operation of pandas takes.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import CommbenchError, ConfigError, Unreadable, no_permission
from commbench.core.states import Phase, headline_of
from commbench.core.terminal import first_line, one_line
from commbench.core.variables import BY_NAME, MAPS, NAMES, TABLE, is_required

from .columns import TABLES, arrow_schema, check_version, row_order
from .jsonl import is_json, json_columns, json_file, json_rows
from .run_folder import PARTS, RECORD, file_bytes

if TYPE_CHECKING:
    import pandas as pd

ROW_KEYS = {  # columns that identify a row: the same row may be in a part and in the merged file
    "cases": ["run_id", "case_id"],
    "samples": ["run_id", "case_id", "phase", "block", "repetition", "rank"],
    "counters": ["run_id", "case_id", "rank", "t_ns", "name"],
}
NEEDED = {  # columns without which a file is not read; any other may be absent and is null
    table: tuple(column.name for column in columns if column.role != "result")
    for table, columns in TABLES.items()
}
NEEDED["cases"] = (
    *filter(is_required, NAMES),
    "run_id",
    "case_id",
    "status",
    "median_s",
)
LONGEST_S = 1e9
REQUIRED = ("benchmark", "backend", "layout", "message_bytes", "status")
RANGES: dict[str, tuple[float, float]] = {  # what a number of a case can be
    "nodes": (1, math.inf),
    "ranks_per_node": (1, math.inf),
    "median_s": (0, LONGEST_S),
    "ci_low_s": (0, LONGEST_S),
    "ci_high_s": (0, LONGEST_S),
    "interval_level": (0, 1),
    "started_at": (0, 250_000_000_000_000_000),  # in us; Python has no year 10000
}
# whole numbers that floats have, too
RANGES |= {each.name: (0, 2**53) for each in TABLE if each.kind == "integer"}
FORMS = {  # variables that are texts with numbers
    "layout": r"^[1-9]\d{0,6}x[1-9]\d{0,6}$",
    "pair": r"^\d{1,7}-\d{1,7}( \d{1,7}-\d{1,7})*$",
}
# block_k samples share two stamps later on only
SINGLE_PHASES: tuple[Phase, ...] = ("connect", "warmup")
NULLABLE = {"integer": "Int64", "flag": "boolean"}
HASHABLE: dict[str, Callable[[Any], object]] = {
    "map": functools.partial(json.dumps, sort_keys=True), "texts": " ".join, "numbers": tuple,
}  # fmt: skip
RUN = b"commbench_run"  # metadata of a run's own cases.parquet: its run.json
RUNS = b"commbench_runs"  # metadata of a saved baseline: the run.json of each of its launches

Columns = tuple[str, ...] | None  # None: all
Paths = str | Path | Sequence["Paths"]


class Damaged(Unreadable):
    """Raised for a file that can't be read, in one line that names it."""


def load(*paths: Paths, table: str = "cases", skip_damaged: bool = False) -> pd.DataFrame:
    """All rows of a table (cases, samples, counters) of all runs below the folders; the newer one
    of two attempts. Cases stand in the order of tables.

        cases = commbench.load("results").query("status == 'ok' and dtype == 'float32'")
        samples = commbench.load("results/a", ["results/b", "results/c"], table="samples")

    Paths: folders with runs, parquet files of that table, lists of them; the folder `results`
    without any. Columns and units: commbench/results/columns.py. `warnings` is a text ("noisy
    skewed", "" for none), `env` and `backend_options` are JSON, lists of numbers are tuples;
    integers and booleans beside nulls are Int64 and boolean. Samples have `operation_s` too, the
    seconds of one operation on that rank's clock.

    Raises CommbenchError where nothing is found, a run has another schema version or a file can't
    be read. With `skip_damaged` a file that can't be read is left out with a UserWarning that names
    it.
    """
    frame = read_rows(paths, table, skip_damaged)
    for column in TABLES[table]:
        values: Any = frame[column.name]
        if column.kind in NULLABLE and values.hasnans:
            frame[column.name] = values.astype(NULLABLE[column.kind])
        elif column.kind in HASHABLE:
            frame[column.name] = values.map(HASHABLE[column.kind], na_action="ignore")
    if table == "cases":
        return in_table_order(frame)
    if table != "samples":
        return frame
    columns = (*ROW_KEYS["cases"], "operations_per_sample", "block_k")
    sources = find_sources(paths, left_out=lambda error: None)
    runs = dict.fromkeys(
        run for path in sources for run in (path.parents[:2] if path.is_file() else [path])
    )
    tables = [
        part
        for run in runs
        for part in run_tables(run, "cases", columns, damaged=lambda error: None)
    ]
    rows = frame[[*ROW_KEYS["cases"], "phase", "elapsed_ns"]].merge(
        frame_of(tables), how="left", on=ROW_KEYS["cases"]
    )
    single = rows["phase"].isin(SINGLE_PHASES)
    each = rows["operations_per_sample"] / rows["block_k"].fillna(1).where(single, 1)
    operation_s = rows["elapsed_ns"].astype("float64") * 1e-9 / each
    return frame.assign(
        operation_s=operation_s.where(single | rows["phase"].isin(("measure", "late")))
    )


def read_rows(
    paths: Iterable[Paths],
    table: str = "cases",
    skip_damaged: bool = False,
    columns: Columns = None,
    where: Any = None,
) -> pd.DataFrame:
    """The rows that commbench.load returns, with lists and maps as they are stored and NaN for
    null; raises like it."""
    tables = []

    def leave_out(error: Damaged) -> None:
        if not skip_damaged:
            raise Unreadable(
                f"{error}; move it away, or use the rest with load(..., skip_damaged=True)"
            ) from error
        warnings.warn(f"{error}; it is left out", stacklevel=5)

    for source in find_sources(paths, table, leave_out):
        try:
            if source.is_dir():
                load_run(source)
            else:
                tables.append(read_table(source, table, columns, where))
        except Damaged as error:
            leave_out(error)  # the rows may be used: each parquet file names its schema version too
        tables += run_tables(source, table, columns, where, leave_out) if source.is_dir() else []
    return frame_of(tables or [_schema(table, columns).empty_table()], table)


def find_sources(
    paths: Iterable[Paths], table: str = "cases", left_out: Callable[[Damaged], None] | None = None
) -> list[Path]:
    """The folders of runs at or below the paths, and the paths that are files; raises
    CommbenchError for none. `left_out` as in find_runs."""
    if table not in TABLES:
        raise CommbenchError(f"table={table} is unknown; allowed: {', '.join(TABLES)}")
    places = flat_paths(paths) or [Path("results")]
    sources = [
        source
        for place in places
        for source in ([place] if place.is_file() else find_runs(place, left_out))
    ]
    if not sources:
        searched = ", ".join(map(str, places))
        raise CommbenchError(
            f"no run.json below {searched}; give the folder of a run or of several, or a parquet"
            " file"
        )
    return sources


def flat_paths(paths: Iterable[Paths]) -> list[Path]:
    """The paths one by one, of lists within lists too."""
    single = (str, os.PathLike)
    return [
        flat
        for path in paths
        for flat in ([Path(path)] if isinstance(path, single) else flat_paths(path))
    ]


def find_runs(path: str | Path, left_out: Callable[[Damaged], None] | None = None) -> list[Path]:
    """Folders with a run.json at or below the path, oldest first.

    `left_out` is called for each folder that this user may not read, which is raised without it.
    """

    def unreadable(error: OSError) -> None:
        if not isinstance(error, PermissionError):  # the path is a file, or was removed meanwhile
            return
        damaged = Damaged(no_permission(error.filename))
        if left_out is None:
            raise damaged from error
        left_out(damaged)

    runs = []
    for folder, folders, names in os.walk(path, onerror=unreadable):
        if RECORD in names or RECORD in folders:
            runs.append(Path(folder))
        if Path(folder) == Path(path) and RECORD in names:
            break
    return sorted(runs, key=lambda run: run.name)


def load_run(path: str | Path) -> dict[str, Any]:
    """run.json of one run; raises Damaged for a broken one and CommbenchError for another schema
    version."""
    file = Path(path) / "run.json"
    try:
        run = json.loads(file_bytes(file))
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(_why_unread(file, error)) from error
    if not isinstance(run, dict):
        raise Damaged(f"{file} is not the record of a run: it holds a {type(run).__name__}")
    check_version(run.get("schema_version"), str(file))
    return run


# ---------------------------------------------------------------- cases with their run records


@dataclass(frozen=True)
class CaseSource:
    """The cases (pyarrow table) of a run folder or of a parquet file, and the run records that came
    with them."""

    path: Path
    cases: Any
    records: tuple[dict[str, Any], ...]
    has_version: bool = True


def read_cases(
    paths: Iterable[Paths], columns: Columns = None
) -> tuple[list[CaseSource], list[str]]:
    """Sources with cases below the paths (folders with runs, parquet files), and why others were
    left out.

    Files are read in parallel: pyarrow reads outside the interpreter's lock. Raises ConfigError for
    mixed units.
    """
    unreadable = list[Damaged]()
    sources = dict.fromkeys(
        source for path in flat_paths(paths) for source in _sources_at(path, unreadable)
    )
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as readers:
        results = list(readers.map(lambda path: _read_source(path, columns), sources))
    problems = [str(error) for error in unreadable]
    problems += [result for result in results if isinstance(result, str)]
    return [result for result in results if not isinstance(result, str)], problems


def _sources_at(path: Path, unreadable: list[Damaged]) -> list[Path]:
    """The runs at or below a path, or the path where there is none; folders that may not be read
    are added to `unreadable`."""
    before = len(unreadable)
    runs = find_runs(path, unreadable.append)
    return runs if runs or len(unreadable) > before else [path]


def _read_source(path: Path, columns: Columns) -> CaseSource | str:
    """The source, or why it can't be used, in one line that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # a run's cases.parquet, a saved baseline, or a table from elsewhere with the same columns
        if path.is_file():
            cases = read_table(path, "cases", columns)
            metadata = pq.read_schema(path).metadata or {}
            source = CaseSource(
                path, cases, tuple(_run_records(metadata)), b"schema_version" in metadata
            )
        elif (path / "run.json").is_file():
            records = (load_run(path),)
            source = CaseSource(path, pa.concat_tables(run_tables(path, "cases", columns)), records)
        else:
            return (
                f"{path}"
                f" {'has no run.json in it or below it' if path.is_dir() else 'does not exist'}"
            )
    except ConfigError:  # mixed units: the answer would be wrong, not incomplete
        raise
    except (
        CommbenchError,
        pa.ArrowException,
        OSError,
        ValueError,
        TypeError,
        RecursionError,
    ) as error:
        line = first_line(error)
        return line if str(path) in line else f"{path}: {line}"
    return source if source.cases.num_rows else f"{path} has no cases"


# ---------------------------------------------------------------- parquet files


def run_tables(
    run: Path,
    table: str,
    columns: Columns = None,
    where: Any = None,
    damaged: Callable[[Damaged], None] | None = None,
) -> list[Any]:
    """The rows of the merged file and of the parts that are not in it yet, newest last; at least an
    empty table.

    `where`: filters of pyarrow; `damaged` is called for each file that can't be read, which is
    raised without it.
    """
    rows: dict[Path, Any] = {}
    # parts first: a run that merges meanwhile has its rows in both places, never in neither
    try:
        below = list((run / PARTS).iterdir())
    except PermissionError as error:
        raise Damaged(no_permission(run / PARTS)) from error
    except OSError:  # there are none
        below = []
    parts = sorted(part for part in below if part.name.endswith(f".{table}.parquet"))
    merged = run / f"{table}.parquet"
    for file in (*parts, merged):
        try:
            rows[file] = read_table(file, table, columns, where)
        except FileNotFoundError:  # there is none, or it was merged meanwhile
            continue
        except Damaged as error:
            if damaged is None:
                raise
            damaged(error)
    tables = [rows[file] for file in (merged, *parts) if file in rows]
    if not tables and is_json(run):  # measured where pyarrow is not installed
        tables = [json_table(run, table, columns, where)]
    return tables or [_schema(table, columns).empty_table()]


def json_table(run: Path, table: str, columns: Columns = None, where: Any = None) -> Any:
    """A table of a run in JSON lines, as read_table returns that of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = json_file(run, table)
    whole = arrow_schema(table)
    try:
        if table == "cases":
            rows = pa.Table.from_pylist(
                [
                    {**row, **{name: list((row.get(name) or {}).items()) for name in MAPS}}
                    for row in json_rows(run)
                ],
                whole,
            )
        else:
            parts = [
                pa.table(part).select(whole.names).cast(whole) for part in json_columns(run, table)
            ]
            rows = pa.concat_tables(parts) if parts else whole.empty_table()
        rows = _with_schema(str(file), rows, _schema(table, columns))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(_why_unread(file, error)) from error
    return rows if where is None else rows.filter(pq.filters_to_expression(where))


def read_table(file: Path, table: str, columns: Columns = None, where: Any = None) -> Any:
    """The columns of one parquet file, with our types; a result that the file does not have is
    null.

    Raises FileNotFoundError, Damaged, CommbenchError for another schema version, ConfigError for
    another unit.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(table, columns)
    try:
        if not file.stat().st_size:
            raise Damaged(f"{file} is empty")
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            stored = opened.schema_arrow  # pyarrow makes schemas and names anew at each access
            names = stored.names
            _check_schema(file, stored, table)
            _check_names(opened.metadata, names)
            present = [name for name in schema.names if name in names]
            early = where is not None and len(present) == len(schema.names)
            rows = None if early else opened.read(columns=present, use_threads=False)
        if early:
            rows = pq.read_table(
                file, columns=present, filters=where, page_checksum_verification=True
            )
        rows = _with_schema(str(file), rows, schema)
        return rows if early or where is None else rows.filter(pq.filters_to_expression(where))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(_why_unread(file, error)) from error


def _why_unread(file: Path, error: BaseException) -> str:
    if isinstance(error, PermissionError):
        return no_permission(file)
    return f"{file} can't be read: {first_line(error)}"


def table_of(frame: pd.DataFrame) -> Any:
    """The cases of a user's data frame, as read_table returns those of a file; raises Damaged."""
    import pyarrow as pa

    names = [str(name) for name in frame]
    schema = _schema("cases", None)
    _check_columns("a data frame", names, "cases")
    known = [name in schema.names for name in names]
    try:
        rows = pa.Table.from_pandas(frame.loc[:, known], preserve_index=False)
    except pa.ArrowException as error:
        raise Damaged(f"a data frame can't be read: {first_line(error)}") from error
    if not len(rows):
        raise Damaged("a data frame has no cases")
    return _with_schema("a data frame", rows, schema)


@functools.cache
def _schema(table: str, columns: Columns) -> Any:
    """The types of the columns, without metadata."""
    import pyarrow as pa

    schema = arrow_schema(table)
    return pa.schema([pa.field(name, schema.field(name).type) for name in columns or schema.names])


def _check_schema(file: Path, schema: Any, table: str) -> None:
    """Raises Damaged for a table of another kind; CommbenchError, ConfigError like read_table."""
    metadata = schema.metadata or {}
    if b"schema_version" in metadata:
        version = metadata[b"schema_version"].decode(errors="replace")
        check_version(int(version) if version.isdigit() else version, str(file))
    _check_columns(str(file), schema.names, table)
    units = {column.name: column.unit for column in TABLES[table]}
    for field in schema:
        unit = (field.metadata or {}).get(b"unit", b"").decode()
        ours = units.get(field.name)
        if field.metadata and b"unit" in field.metadata and ours not in (None, unit):
            raise ConfigError(
                f"{file}: column {field.name} is in {unit or 'no unit'}, commbench's in"
                f" {ours or 'no unit'}; mixed units are not compared: convert the column, then its"
                " metadata"
            )


def _check_names(metadata: Any, names: Sequence[str]) -> None:
    """Raises ValueError where a file's footer, which has no checksum, has two names of a column."""
    import pyarrow as pa

    written = (metadata.metadata or {}).get(b"ARROW:schema")  # by other programs than pyarrow: None
    if written is None:
        return
    differing = {*pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written))).names} ^ {*names}
    if differing:
        raise ValueError(f"a column has two names: {', '.join(sorted(differing))}")


def _check_columns(where: str, names: Sequence[str], table: str) -> None:
    missing = [name for name in NEEDED[table] if name not in names]
    if missing:
        seen = ", ".join(names[:6]) or "none"
        raise Damaged(
            f"{where} is not a table of {table}: it has the columns {seen}, but not"
            f" {', '.join(missing)}"
        )


def _with_schema(where: str, rows: Any, schema: Any) -> Any:
    """The rows with the columns and types of the schema; raises Damaged.

    A variable that rows of an earlier version lack has its default, any other column is null.
    """
    import pyarrow as pa

    by_name = dict(zip(rows.column_names, rows.columns, strict=True))
    present = set(by_name)
    if any(by_name[name].null_count for name in ("run_id", "case_id") if name in by_name):
        raise Damaged(f"{where} has rows without run_id or case_id")
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in by_name:
            default = BY_NAME[name].default if name in BY_NAME else None
            by_name[name] = pa.array([default] * len(rows), kind)
        elif by_name[name].type != kind:
            try:
                by_name[name] = _converted(by_name[name], name, kind)
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise Damaged(
                    f"{where}: column {name} is not of type {kind}: {first_line(error)}"
                ) from error
        if name in present:
            _check_values(where, name, by_name[name])
    _check_rows(where, {name: by_name[name] for name in schema.names if name in present})
    return pa.Table.from_arrays([by_name[name] for name in schema.names], schema=schema)


def _check_rows(where: str, columns: Mapping[str, Any]) -> None:
    """Raises Damaged for values that no case has together."""
    import pyarrow.compute as pc

    if {"status", "median_s"} <= {*columns}:
        unknown = pc.is_null(columns["median_s"], nan_is_null=True)
        if pc.any(pc.and_(pc.equal(columns["status"], "ok"), unknown)).as_py():
            raise Damaged(f"{where} has a case with status ok and without median_s")
    if {"visit_medians_s", "visit_launches"} <= {*columns}:
        lengths = (
            pc.list_value_length(columns[name]) for name in ("visit_medians_s", "visit_launches")
        )
        if pc.any(pc.not_equal(*lengths)).as_py():
            raise Damaged(f"{where} has visit_medians_s and visit_launches of different lengths")


def _check_values(where: str, name: str, column: Any) -> None:
    """Raises Damaged for a variable that no case can have."""
    import pyarrow.compute as pc

    if name in REQUIRED and column.null_count:
        raise Damaged(f"{where} has rows without {name}")
    if name in RANGES:
        least, most = RANGES[name]
        values = pc.drop_null(column.cast("int64") if name == "started_at" else column)
        inside = pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most))
        if len(wrong := values.filter(pc.invert(inside))):
            raise Damaged(f"{where} has {name} {wrong[0]}, which no case has")
    if name in FORMS:
        known = pc.drop_null(column)
        wrong = known.filter(pc.invert(pc.match_substring_regex(known, FORMS[name])))
        if len(wrong):
            raise Damaged(
                f"{where} has {name} {one_line(wrong[0].as_py())[:80]!r}, which no case has"
            )


def _converted(column: Any, name: str, kind: Any) -> Any:
    """A column as pandas wrote it: a map as a list of pairs, a struct, or the text that
    commbench.load returns."""
    import pyarrow as pa

    if column.null_count == len(column):  # as numbers, in pandas
        return pa.nulls(len(column), kind)
    if name == "warnings" and not pa.types.is_nested(column.type):
        return pa.array(
            [value if value is None else str(value).split() for value in column.to_pylist()],
            type=kind,
        )
    if not pa.types.is_map(kind):
        return column.cast(kind)
    values = (
        json.loads(value) if isinstance(value, str) else value for value in column.to_pylist()
    )
    items = (value if value is None else dict(value).items() for value in values)
    # a struct has nulls for the names of other rows
    maps = [
        pairs if pairs is None else [pair for pair in pairs if pair[1] is not None]
        for pairs in items
    ]
    return pa.array(maps, type=kind)


def _run_records(metadata: Mapping[bytes, bytes]) -> list[dict[str, Any]]:
    """The records of the runs whose cases are in a file, from its metadata."""
    records = json.loads(metadata.get(RUNS, b"[]"))
    records += [json.loads(metadata[RUN])] if RUN in metadata else []
    return [record for record in records if record]


def frame_of(tables: Sequence[Any], table: str = "cases") -> pd.DataFrame:
    """One data frame in which the row of a later table replaces the same row of an earlier one."""
    import pyarrow as pa

    rows = pa.concat_tables(tables).combine_chunks()
    frame: pd.DataFrame = rows.to_pandas(
        maps_as_pydicts="strict", split_blocks=True, self_destruct=True
    )
    return frame.drop_duplicates(ROW_KEYS[table], keep="last", ignore_index=True)


def counting_ranks(case: Mapping[Any, Any], ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask of the ranks [n] whose clocks count, by the column `headline`: a repetition takes as
    long as the slowest of them measured."""
    if headline_of(case) == "max_over_ranks":
        return np.full(ranks.size, True)
    end = 1 if headline_of(case) == "receiver" else 0
    return np.isin(ranks, [int(pair.split("-")[end]) for pair in case["pair"].split()])


def in_table_order(cases: pd.DataFrame) -> pd.DataFrame:
    """The cases run by run, each in the order of tables."""
    rows = row_dicts(cases[["run_id", *NAMES]])
    keys = [(row["run_id"], row_order(row)) for row in rows]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return cases.iloc[order].reset_index(drop=True)


def row_dicts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a data frame with plain values."""
    names = [str(name) for name in frame.columns]
    # column by column: pandas' own to_dict("records") takes twice the time
    columns = [list(map(plain, frame[name].tolist())) for name in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def plain(value: Any) -> Any:
    """The value in types of Python: None for any null, integers that pandas made floats beside
    nulls."""
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    if value is None or isinstance(value, (str, int)):
        return value
    import pandas as pd

    return (
        None
        if value is pd.NA or value is pd.NaT
        else value.item()
        if isinstance(value, np.generic)
        else value
    )
