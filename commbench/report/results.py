"""What a report is about: the cases and records of all runs that can be read, and a line for each that can't."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.columns import VARIABLES, arrow_schema, check_version
from commbench.core.errors import CommbenchError, ConfigError

from .load import KEYS, find_runs, load_run

if TYPE_CHECKING:
    import pandas as pd

NEEDED = (*(column.name for column in VARIABLES), "run_id", "case_id", "status", "median_s")
NUMBERS = (
    "operations_per_sample", "block_k", "ci_low_s", "ci_high_s", "p99_s", "algbw_gb_per_s", "busbw_gb_per_s",
    "limit_gb_per_s", "efficiency", "overhead_s",
)  # fmt: skip
TEXTS = ["label", "reason", "flags", "limit_name"]
COLUMNS = (*NEEDED, "launch", "ranks_per_node", "world_size", *TEXTS, *NUMBERS)


@dataclass(frozen=True)
class Run:
    """A run.json, and where it lies; None where only a parquet file of cases was given."""

    record: Mapping[str, Any]
    folder: Path | None

    @property
    def run_id(self) -> str:
        return str(self.record.get("run_id"))


@dataclass(frozen=True)
class Results:
    """`cases` has COLUMNS; of two attempts at a case the newest. `problems` names what was left out, and why."""

    cases: pd.DataFrame
    runs: tuple[Run, ...]
    problems: tuple[str, ...]


def read(paths: Iterable[str | Path], benchmark: str | None = None) -> Results:
    """All runs below the folders, and parquet files of cases; raises ConfigError where nothing is left."""
    sources = dict.fromkeys(file for one in paths for file in _sources(Path(one)))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as readers:  # pyarrow reads outside the interpreter's lock
        attempts = list(readers.map(_attempt, sources))
    found = [one for one in attempts if not isinstance(one, str)]
    problems = [one for one in attempts if isinstance(one, str)]
    tables = [table for _, table in found if table.num_rows]
    problems += [f"{run.folder or run.run_id} has no cases" for run, table in found if not table.num_rows]
    if not tables:
        raise ConfigError(f"nothing to report: {'; '.join(problems)}; give a folder with runs or a parquet of cases")
    frame = _frame(tables)
    return Results(_only(frame, benchmark), tuple(run for run, _ in found), tuple(problems))


def _attempt(path: Path) -> tuple[Run, Any] | str:
    """A run with its cases, or why it can't be read."""
    import pyarrow as pa

    try:
        return _from_file(path) if path.is_file() else _from_run(path)
    except (CommbenchError, pa.ArrowException, OSError, ValueError, TypeError, RecursionError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return line if str(path) in line else f"{path}: {line}"


def _sources(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    runs = find_runs(path) if path.is_dir() else []
    return runs or [path]


def _from_run(folder: Path) -> tuple[Run, Any]:
    if not folder.is_dir():
        raise CommbenchError(f"{folder} does not exist")
    if not (folder / "run.json").is_file():
        raise CommbenchError(f"{folder} has no run.json in it or below it")
    run = Run(load_run(folder), folder)
    files = [folder / "cases.parquet", *sorted((folder / "parts").glob("*.cases.parquet"))]
    tables = [_table(file) for file in files if file.is_file()]
    return run, _together(tables or [_wanted().empty_table()])


def _from_file(file: Path) -> tuple[Run, Any]:
    """A run's cases.parquet, or a baseline that was saved."""
    import pyarrow.parquet as pq

    if not file.stat().st_size:
        raise CommbenchError(f"{file} is empty")
    metadata = pq.read_schema(file).metadata or {}
    record = json.loads(metadata.get(b"commbench_run", b"{}"))
    return Run({"run_id": file.stem} | (record if isinstance(record, dict) else {}), None), _table(file)


def _table(file: Path) -> Any:
    """COLUMNS of one file; what the file lacks is null. Raises CommbenchError for a foreign table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = pq.ParquetFile(file)
    schema = source.schema_arrow
    metadata, names = schema.metadata or {}, schema.names
    if b"schema_version" in metadata:
        version = metadata[b"schema_version"].decode(errors="replace")
        check_version(int(version) if version.isdigit() else version, str(file))
    lacking = [name for name in NEEDED if name not in names]
    if lacking:
        seen = ", ".join(names[:6]) or "none"
        raise CommbenchError(f"{file} is no table of cases: it has the columns {seen}, but not {', '.join(lacking)}")
    table = source.read(columns=[name for name in COLUMNS if name in names], use_threads=False)
    wanted = _wanted()
    for name in (one for one in COLUMNS if one not in names):
        table = table.append_column(wanted.field(name), pa.nulls(len(table), wanted.field(name).type))
    return table.select(list(COLUMNS)).replace_schema_metadata().cast(wanted)


@functools.cache
def _wanted() -> Any:
    """The types of COLUMNS."""
    import pyarrow as pa

    schema = arrow_schema("cases")
    return pa.schema([pa.field(name, schema.field(name).type) for name in COLUMNS])


def _together(tables: list[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_tables(tables)


def _frame(tables: list[Any]) -> pd.DataFrame:
    """One data frame; texts that repeat are held once."""
    frame: pd.DataFrame = (
        _together(tables)
        .combine_chunks()
        .to_pandas(maps_as_pydicts="strict", deduplicate_objects=True, split_blocks=True, self_destruct=True)
    )
    return frame.drop_duplicates(KEYS["cases"], keep="last", ignore_index=True)


def _only(frame: pd.DataFrame, benchmark: str | None) -> pd.DataFrame:
    if benchmark is None:
        return frame
    chosen = frame[frame["benchmark"] == benchmark].reset_index(drop=True)
    if not len(chosen):
        seen = ", ".join(sorted(frame["benchmark"].unique()))
        raise ConfigError(f"--benchmark {benchmark} is not in these results; they have: {seen}")
    return chosen
