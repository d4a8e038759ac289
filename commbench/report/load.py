"""Result folders as pandas data frames, also while a run is still going on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.errors import CommbenchError
from commbench.schema import TABLES, arrow_schema, check_version

if TYPE_CHECKING:
    import pandas as pd


KEYS = {  # what makes a row the same row: it may be read from a part and from the merged file
    "cases": ["run_id", "case_id"],
    "samples": ["run_id", "case_id", "phase", "block", "repetition", "rank"],
    "counters": ["run_id", "case_id", "rank", "t_ns", "name"],
}


def load(*paths: str | Path, table: str = "cases") -> pd.DataFrame:
    """All rows of a table (cases, samples, counters) of all runs below the folders; of two attempts the newer counts.

    Raises CommbenchError where nothing is found or a run has another schema version.
    """
    import pyarrow as pa

    if table not in TABLES:
        raise CommbenchError(f"table={table} is unknown; allowed: {', '.join(TABLES)}")
    runs = [run for path in paths or ("results",) for run in find_runs(path)]
    if not runs:
        searched = ", ".join(str(path) for path in paths or ("results",))
        raise CommbenchError(f"no run.json below {searched}; give the folder of a run or of several")
    tables = [_read(run, table) for run in runs]
    frame: pd.DataFrame = pa.concat_tables(tables).to_pandas(maps_as_pydicts="strict")
    return frame.drop_duplicates(KEYS[table], keep="last", ignore_index=True)


def find_runs(path: str | Path) -> list[Path]:
    """Folders with a run.json at or below the path, oldest first."""
    root = Path(path)
    found = [root] if (root / "run.json").is_file() else [file.parent for file in root.rglob("run.json")]
    return sorted(found, key=lambda run: run.name)


def load_run(path: str | Path) -> dict[str, Any]:
    """run.json of one run; raises CommbenchError for a broken or foreign one."""
    file = Path(path) / "run.json"
    try:
        run = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CommbenchError(f"{file} can't be read: {error}") from error
    if not isinstance(run, dict):
        raise CommbenchError(f"{file} is no run: it holds a {type(run).__name__}")
    check_version(run.get("schema_version"), str(file))
    return run


def _read(run: Path, table: str) -> Any:
    """The merged file and the parts that are not in it yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    load_run(run)
    schema = arrow_schema(table)
    # parts first: a run that merges meanwhile has its rows in both places, never in neither
    files = sorted((run / "parts").glob(f"*.{table}.parquet"))
    try:
        tables = [pq.ParquetFile(file).read().cast(schema) for file in files]
    except FileNotFoundError:  # merged while we read
        tables = []
    except (pa.ArrowException, OSError) as error:
        raise CommbenchError(f"a {table} part of {run} can't be read: {str(error).splitlines()[0]}") from error
    try:
        if (run / f"{table}.parquet").is_file():
            tables.insert(0, pq.ParquetFile(run / f"{table}.parquet").read().cast(schema))
    except (pa.ArrowException, OSError) as error:
        raise CommbenchError(f"a {table} file of {run} can't be read: {str(error).splitlines()[0]}") from error
    return pa.concat_tables([schema.empty_table(), *tables])
