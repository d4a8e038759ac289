"""Result folders as pandas data frames, also while a run is still going on."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.columns import TABLES, arrow_schema, check_version, with_current_columns
from commbench.core.errors import CommbenchError

if TYPE_CHECKING:
    import pandas as pd


KEYS = {  # what makes a row the same row: it may be read from a part and from the merged file
    "cases": ["run_id", "case_id"],
    "samples": ["run_id", "case_id", "phase", "block", "repetition", "rank"],
    "counters": ["run_id", "case_id", "rank", "t_ns", "name"],
}


class Damaged(CommbenchError):
    """Raised for a file that can't be read, in one line that names it."""


def load(*paths: str | Path, table: str = "cases", skip_damaged: bool = False) -> pd.DataFrame:
    """All rows of a table (cases, samples, counters) of all runs below the folders; of two attempts the newer counts.

    Raises CommbenchError where nothing is found, a run has another schema version, or a file can't be read; with
    `skip_damaged` the latter is left out with a UserWarning that names it, and the other files are used.
    """
    import pyarrow as pa

    if table not in TABLES:
        raise CommbenchError(f"table={table} is unknown; allowed: {', '.join(TABLES)}")
    runs = [run for path in paths or ("results",) for run in find_runs(path)]
    if not runs:
        searched = ", ".join(str(path) for path in paths or ("results",))
        raise CommbenchError(f"no run.json below {searched}; give the folder of a run or of several")
    tables = [_read(run, table, skip_damaged) for run in runs]
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
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(_damage(file, error)) from error
    if not isinstance(run, dict):
        raise Damaged(f"{file} is no run: it holds a {type(run).__name__}")
    check_version(run.get("schema_version"), str(file))
    return run


def _read(run: Path, table: str, skip_damaged: bool) -> Any:
    """The merged file and the parts that are not in it yet."""
    import pyarrow as pa

    found: dict[Path, Any] = {}
    try:
        load_run(run)
    except Damaged as error:
        _leave_out(error, skip_damaged)  # each parquet file names its schema version too
    # parts first: a run that merges meanwhile has its rows in both places, never in neither
    parts = sorted((run / "parts").glob(f"*.{table}.parquet"))
    merged = run / f"{table}.parquet"
    for file in (*parts, merged):
        try:
            found[file] = _rows(file, table)
        except FileNotFoundError:  # there is none, or it was merged while we read
            continue
        except Damaged as error:
            _leave_out(error, skip_damaged)
    newest_last = [found[file] for file in (merged, *parts) if file in found]
    return pa.concat_tables([arrow_schema(table).empty_table(), *newest_last])


def _rows(file: Path, table: str) -> Any:
    """Raises FileNotFoundError, Damaged, and CommbenchError for another schema version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            version = (opened.schema_arrow.metadata or {}).get(b"schema_version", b"").decode(errors="replace")
            if version:
                check_version(int(version) if version.isdigit() else version, str(file))
            return with_current_columns(opened.read(), table)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(_damage(file, error)) from error


def _damage(file: Path, error: Exception) -> str:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return f"{file} can't be read: {why}"


def _leave_out(error: Damaged, skip_damaged: bool) -> None:
    if not skip_damaged:
        raise CommbenchError(f"{error}; move it away, or use the rest with load(..., skip_damaged=True)") from error
    warnings.warn(f"{error}; it is left out", stacklevel=4)
