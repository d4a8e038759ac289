"""The one reader of result folders and of parquet files of cases, also while a run is still going
on.

The stored tables have lists and maps, which pandas can't hash, and nulls, for which it would turn
integers into floats: commbench.load returns them in a form that every operation of pandas takes.
"""

from __future__ import annotations

import functools
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import counting_ranks
from commbench.core.errors import CommbenchError, ConfigError, Unreadable, no_permission
from commbench.core.states import Phase
from commbench.core.terminal import first_line
from commbench.core.units import natural_key
from commbench.core.variables import NAMES

from .columns import TABLES, check_version
from .jsonl import is_json
from .row import DEFAULTS, Row, column_values, stored_row
from .run_folder import PARTS, RECORD, file_bytes, mapping_or_empty, walk
from .table_files import Columns, Damaged, json_table, read_table, schema_of, table_of, why_unread

if TYPE_CHECKING:
    import pandas as pd

CASE_KEY = ["run_id", "case_id"]
ROW_KEYS = {  # columns that identify a row: the same row may be in a part and in the merged file
    "cases": CASE_KEY,
    "samples": [*CASE_KEY, "phase", "block", "repetition", "rank"],
    "counters": [*CASE_KEY, "rank", "t_ns", "name"],
}
# block_k samples share two stamps later on only
SINGLE_PHASES: tuple[Phase, ...] = ("connect", "warmup")
NULLABLE = {"integer": "Int64", "flag": "boolean"}
HASHABLE: dict[str, Callable[[Any], object]] = {
    "map": functools.partial(json.dumps, sort_keys=True),
    "texts": " ".join, "numbers": tuple, "integers": lambda values: tuple(values.tolist()),
}  # fmt: skip
RUN = b"commbench_run"  # metadata of a run's own cases.parquet: its run.json
RUNS = b"commbench_runs"  # metadata of a saved baseline: the run.json of each of its launches

Paths = str | Path | Sequence["Paths"]
LeaveOut = Callable[[Damaged], None]  # what is done with what can't be read


def refuse(error: Damaged) -> None:
    raise error


def ignore(error: Damaged) -> None:
    pass


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
    if table == "samples":
        return frame.assign(operation_s=_operation_s(frame, paths))
    return in_table_order(frame) if table == "cases" else frame


def _operation_s(samples: pd.DataFrame, paths: Sequence[Paths]) -> pd.Series[float]:
    """The seconds of one operation in each sample, by the cases of its run."""
    columns = (*CASE_KEY, "operations_per_sample", "block_k")
    runs = dict[Path, None]()
    for source in find_sources(paths, left_out=ignore):
        # a file lies in the folder of its run, or in the folder `parts` there
        runs |= dict.fromkeys(source.parents[:2] if source.is_file() else [source])
    tables = [part for run in runs for part in run_tables(run, "cases", columns, damaged=ignore)]
    rows = samples[[*CASE_KEY, "phase", "elapsed_ns"]].merge(
        frame_of(tables), how="left", on=CASE_KEY
    )
    is_single = rows["phase"].isin(SINGLE_PHASES)
    is_timed = is_single | rows["phase"].isin(("measure", "late"))
    operations = rows["operations_per_sample"] / rows["block_k"].fillna(1).where(is_single, 1)
    return (rows["elapsed_ns"].astype("float64") * 1e-9 / operations).where(is_timed)


def read_rows(
    paths: Iterable[Paths],
    table: str = "cases",
    skip_damaged: bool = False,
    columns: Columns = None,
    where: Any = None,
) -> pd.DataFrame:
    """The rows that commbench.load returns, with lists and maps as they are stored and NaN for
    null; raises like it."""
    return frame_of(_read_tables(paths, table, skip_damaged, columns, where), table)


def read_case_rows(paths: Iterable[Paths], skip_damaged: bool = False) -> list[Row]:
    """The cases that commbench.load returns, in the order of the files; raises like it."""
    return newest_rows(_read_tables(paths, skip_damaged=skip_damaged))


def _read_tables(
    paths: Iterable[Paths],
    table: str = "cases",
    skip_damaged: bool = False,
    columns: Columns = None,
    where: Any = None,
) -> list[Any]:
    """At least one pyarrow table."""
    tables = []

    def leave_out(error: Damaged) -> None:
        if not skip_damaged:
            raise Unreadable(
                f"{error}; move it away, or use the rest with load(..., skip_damaged=True)"
            ) from error
        warnings.warn(f"{error}; it is left out", stacklevel=6)

    for source in find_sources(paths, table, leave_out):
        try:
            if source.is_file():
                tables.append(read_table(source, table, columns, where))
            else:
                load_run(source)
        except Damaged as error:
            leave_out(error)
        if source.is_dir():  # also without its record: each file names its schema version
            tables += run_tables(source, table, columns, where, leave_out)
    return tables or [schema_of(table, columns).empty_table()]


def find_sources(
    paths: Iterable[Paths], table: str = "cases", left_out: LeaveOut = refuse
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
    return [
        flat
        for path in paths
        for flat in ([Path(path)] if isinstance(path, str | os.PathLike) else flat_paths(path))
    ]


def find_runs(path: str | Path, left_out: LeaveOut = refuse) -> list[Path]:
    """Folders with a run.json at or below the path, oldest first; also through links to folders,
    each once.

    `left_out` is called for each folder that this user may not read.
    """

    def unreadable(error: OSError) -> None:
        if isinstance(error, PermissionError):  # else the path is a file, or was removed meanwhile
            left_out(Damaged(no_permission(error.filename)))

    runs = []
    for folder, folders, names in walk(path, unreadable):
        if RECORD in names or RECORD in folders:
            runs.append(folder)
        if folder == Path(path) and RECORD in names:
            break
    return sorted(runs, key=lambda run: run.resolve().name)  # a link may have any name


def load_run(path: str | Path) -> dict[str, Any]:
    """run.json of one run; raises Damaged for a broken one and CommbenchError for another schema
    version."""
    file = Path(path) / RECORD
    try:
        run = json.loads(file_bytes(file))
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(why_unread(file, error)) from error
    if not isinstance(run, dict):
        raise Damaged(f"{file} is not the record of a run: it holds a {type(run).__name__}")
    check_version(run.get("schema_version"), str(file))
    _check_types(run, str(file))
    return run


def _check_types(run: Mapping[str, Any], where: str) -> None:
    """Raises Damaged for a record whose parts that everybody reads are not what they must be."""
    nodes = mapping_or_empty(run.get("world")).get("ranks")
    fits = {
        "status": isinstance(run.get("status"), str | None),
        "overrides": _is_list_of(str, run.get("overrides")),
        "layouts": _is_list_of(str, run.get("layouts")),
        "world.ranks": _is_list_of(list, nodes)
        and all(_is_list_of(int, node) for node in nodes or ()),
    }
    for name, is_right in fits.items():
        if not is_right:
            raise Damaged(f"{where} is not the record of a run: {name} has another type")


def _is_list_of(kind: type, value: Any) -> bool:
    """Or None, where nothing is recorded."""
    return value is None or (
        isinstance(value, list) and all(isinstance(each, kind) for each in value)
    )


# ---------------------------------------------------------------- cases with their run records


@dataclass(frozen=True)
class CaseSource:
    """The cases (pyarrow table) of a run folder or of a parquet file, and the run records that came
    with them."""

    path: Path
    cases: Any
    records: tuple[dict[str, Any], ...]
    has_version: bool = True


def read_cases(paths: Iterable[Paths]) -> tuple[list[CaseSource], list[str]]:
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
        results = list(readers.map(_read_source, sources))
    problems = list(map(str, unreadable))
    problems += [result for result in results if isinstance(result, str)]
    return [result for result in results if not isinstance(result, str)], problems


def _sources_at(path: Path, unreadable: list[Damaged]) -> list[Path]:
    """The runs at or below a path, or the path where there is none; folders that may not be read
    are added to `unreadable`."""
    before = len(unreadable)
    runs = find_runs(path, unreadable.append)
    return runs if runs or len(unreadable) > before else [path]


def _read_source(path: Path) -> CaseSource | str:
    """The source, or why it can't be used, in one line that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # a run's cases.parquet, a saved baseline, or a table from elsewhere with the same columns
        if path.is_file():
            cases = read_table(path, "cases")
            metadata = pq.read_schema(path).metadata or {}
            source = CaseSource(
                path, cases, tuple(_run_records(metadata)), b"schema_version" in metadata
            )
        elif (path / RECORD).is_file():
            records = (load_run(path),)
            source = CaseSource(path, pa.concat_tables(run_tables(path, "cases")), records)
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
    damaged: LeaveOut = refuse,
) -> list[Any]:
    """The rows of the merged file and of the parts that are not in it yet, newest last; at least an
    empty table.

    `where`: filters of pyarrow; `damaged` is called for each file that can't be read.
    """
    rows = dict[Path, Any]()
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
            damaged(error)
    tables = [rows[file] for file in (merged, *parts) if file in rows]
    if not tables and is_json(run):  # measured where pyarrow is not installed
        tables = [json_table(run, table, columns, where)]
    return tables or [schema_of(table, columns).empty_table()]


def _run_records(metadata: Mapping[bytes, bytes]) -> list[dict[str, Any]]:
    """The records of the runs whose cases are in a file, from its metadata."""
    records = json.loads(metadata.get(RUNS, b"[]"))
    records.append(json.loads(metadata.get(RUN, b"null")))
    found = [record for record in records if record]
    for record in found:
        _check_types(record, "a record in it")
    return found


def rows_of_table(table: Any) -> list[Row]:
    """The rows of a pyarrow table of cases; those that it lacks, or has no value of,
    are at their defaults."""
    columns = {
        name: column_values(name, column.to_pylist())
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name not in DEFAULTS or column.null_count < len(column)
    }
    return list(map(partial(stored_row, columns), zip(*columns.values(), strict=True)))


def rows_of_frame(cases: pd.DataFrame) -> list[Row]:
    """The rows of a user's data frame; raises CommbenchError where it is not one of cases."""
    return rows_of_table(table_of(cases)) if len(cases) else []


def newest_rows(tables: Iterable[Any]) -> list[Row]:
    """The rows of tables of cases, of which a later one replaces the same row of an earlier one."""
    rows = [row for table in tables for row in rows_of_table(table)]
    last = {(row.run_id, row.case_id): at for at, row in enumerate(rows)}
    return [rows[at] for at in sorted(last.values())]


def frame_of(tables: Sequence[Any], table: str = "cases") -> pd.DataFrame:
    """One data frame in which the row of a later table replaces the same row of an earlier one."""
    import pyarrow as pa

    rows = pa.concat_tables(tables).combine_chunks()
    frame: pd.DataFrame = rows.to_pandas(
        maps_as_pydicts="strict", split_blocks=True, self_destruct=True
    )
    return frame.drop_duplicates(ROW_KEYS[table], keep="last", ignore_index=True)


def counting_mask(case: Row, ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask of the ranks [n] whose clocks count, all where these are not there: a repetition takes
    as long as the slowest of them measured."""
    counted = np.isin(ranks, counting_ranks(case, case.headline, case.counted_ranks) or ())
    return counted | (not counted.any())


def in_table_order(cases: pd.DataFrame) -> pd.DataFrame:
    """The cases run by run, each in the order of tables."""
    rows = row_dicts(cases[["run_id", *NAMES]])
    keys = [(row["run_id"], *(natural_key(row[name]) for name in NAMES)) for row in rows]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return cases.iloc[order].reset_index(drop=True)


def row_dicts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a data frame with plain values."""
    names = list(map(str, frame.columns))
    # column by column: pandas' own to_dict("records") takes twice the time
    columns = [list(map(plain, frame[name].tolist())) for name in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def plain(value: Any) -> Any:
    """The value in types of Python: None for any null, integers that pandas made floats beside
    nulls."""
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    if isinstance(value, str | int | None):
        return value
    import pandas as pd

    return (
        None
        if value is pd.NA or value is pd.NaT
        else value.item()
        if isinstance(value, np.generic)
        else value
    )
