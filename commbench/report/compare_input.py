"""One side of a comparison: all rows, run records and samples of folders and of parquet files of cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.columns import CASES, SCHEMA_VERSION, VARIABLES, arrow_schema, check_version
from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.run_folder import publish

from .load import KEYS, find_runs, load, load_run

if TYPE_CHECKING:
    import pandas as pd

NEEDED = (*(column.name for column in VARIABLES), "run_id", "case_id", "status", "median_s")
RUNS = "commbench_runs"  # metadata of a saved baseline: the run.json of each of its launches
RUN = "commbench_run"  # ... of a run's own file
KINDS = {"number": "float64", "integer": "Int64"}  # the same in every file, also where all is null
MEDIAN_TOLERANCE = 0.01  # between a case's median and that of its samples

Series = NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """BASE or NEW. `folders` has the runs whose samples can be read; `problems` is a line for each thing left out."""

    name: str
    cases: pd.DataFrame
    runs: tuple[dict[str, Any], ...] = ()
    folders: Mapping[str, Path] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    label: str = ""
    times: Mapping[tuple[str, str], Series] = field(default_factory=dict)  # run_id, case_id -> with_samples


def read_side(name: str, sources: Iterable[str | Path | pd.DataFrame]) -> Side:
    """All that can be read; what can't is named in `problems`. Raises ConfigError where nothing is left."""
    sources = list(sources)
    sides = [side for source in sources for side in _read(name, source)]
    problems = tuple(line for side in sides for line in side.problems)
    filled = [side for side in sides if len(side.cases)]
    if not filled:
        reasons = "; ".join(problems) or "no cases in it"
        raise ConfigError(f"{name} has nothing to compare: {reasons}")
    import pandas as pd

    cases = pd.concat([side.cases for side in filled], ignore_index=True)
    return Side(
        name,
        cases.drop_duplicates(KEYS["cases"], keep="last", ignore_index=True),
        tuple({str(run.get("run_id")): run for side in filled for run in side.runs}.values()),
        {run_id: folder for side in filled for run_id, folder in side.folders.items()},
        problems,
        ", ".join("a data frame" if isinstance(one, pd.DataFrame) else str(one) for one in sources),
    )


def _read(name: str, source: str | Path | pd.DataFrame) -> list[Side]:
    if not isinstance(source, (str, Path)):
        return [_attempt(name, "a data frame", lambda *_: Side(name, _complete(source, "a data frame")))]
    path = Path(source)
    if path.is_file():
        return [_attempt(name, path, _from_file)]
    runs = find_runs(path) if path.is_dir() else []
    if not runs:
        raise ConfigError(f"{name}={path} is neither a folder with runs (run.json) nor a parquet file of cases")
    return [_attempt(name, run, _from_run) for run in runs]


def _attempt(name: str, path: Any, reader: Callable[[str, Any], Side]) -> Side:
    """The side of one file or run; an empty one with its problem where that can't be read."""
    import pandas as pd
    import pyarrow as pa

    try:
        side = reader(name, path)
    except ConfigError:  # unlike units: the answer would be wrong, not incomplete
        raise
    except (CommbenchError, pa.ArrowException, OSError, ValueError, TypeError, RecursionError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Side(name, pd.DataFrame(), problems=(line if str(path) in line else f"{path}: {line}",))
    if not len(side.cases):
        return replace(side, problems=(*side.problems, f"{path} has no cases"))
    return side


def _from_run(name: str, run: Path) -> Side:
    record = load_run(run)
    for file in (*(run / "parts").glob("*.cases.parquet"), run / "cases.parquet"):
        if file.is_file():
            _check_units(file)
    cases = load(run)
    return Side(name, _complete(cases, str(run)), (record,), dict.fromkeys(cases["run_id"].unique(), run))


def _from_file(name: str, file: Path) -> Side:
    """A run's cases.parquet, a saved baseline, or a foreign table with the same columns."""
    import pyarrow.parquet as pq

    if not file.stat().st_size:
        raise CommbenchError(f"{file} is empty")
    metadata = pq.read_schema(file).metadata or {}
    if b"schema_version" in metadata:
        check_version(_integer(metadata[b"schema_version"]), str(file))
    _check_units(file)
    cases = pq.ParquetFile(file).read().to_pandas(maps_as_pydicts="strict")
    runs = json.loads(metadata.get(RUNS.encode(), b"[]"))
    runs += [json.loads(metadata[RUN.encode()])] if RUN.encode() in metadata else []
    problems = () if b"schema_version" in metadata else (f"{file} names no schema version: taken as {SCHEMA_VERSION}",)
    return Side(name, _complete(cases, str(file)), tuple(runs), problems=problems)


def _integer(text: bytes) -> int | str:
    return int(text) if text.isdigit() else text.decode(errors="replace")


def _check_units(file: Path) -> None:
    """Raises ConfigError where a column says another unit than ours."""
    import pyarrow.parquet as pq

    units = {column.name: column.unit for column in CASES}
    for one in pq.read_schema(file):
        unit = (one.metadata or {}).get(b"unit", units.get(one.name, "").encode()).decode()
        if one.name in units and unit != units[one.name]:
            raise ConfigError(
                f"{file}: column {one.name} is in {unit or 'no unit'}, commbench's in {units[one.name] or 'no unit'}; "
                "mixed units are not compared: convert the column, then its metadata"
            )


def _complete(cases: pd.DataFrame, where: str) -> pd.DataFrame:
    """A copy with all columns that a comparison reads; raises CommbenchError for a foreign table."""
    lacking = [name for name in NEEDED if name not in cases.columns]
    if lacking:
        seen = ", ".join(str(name) for name in cases.columns[:6]) or "none"
        raise CommbenchError(f"{where} is no table of cases: it has the columns {seen}, but not {', '.join(lacking)}")
    if cases[["run_id", "case_id"]].isna().any(axis=None):
        raise CommbenchError(f"{where} has rows without run_id or case_id")
    absent = [column.name for column in CASES if column.name not in cases.columns]
    frame = cases.reindex(columns=[*cases.columns, *absent])
    for column in CASES:
        if column.kind in KINDS:
            try:
                frame = frame.astype({column.name: KINDS[column.kind]})
            except (ValueError, TypeError) as error:
                raise CommbenchError(f"{where}: column {column.name} is not numeric: {error}") from error
    return frame


def check_target(target: str | Path) -> None:
    """Raises ConfigError where save could not write."""
    path = Path(target)
    if path.is_dir():
        raise ConfigError(f"--save {path} is a folder; give the name of a parquet file")
    if not path.parent.is_dir():
        raise ConfigError(f"--save {path}: there is no folder {path.parent}")


def save(side: Side, target: str | Path) -> None:
    """One parquet file of the side's cases with its run records, for a later --against; samples stay behind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {"schema_version": str(SCHEMA_VERSION), RUNS: json.dumps(side.runs)}
    schema = arrow_schema("cases")
    path = Path(target)
    aside = path.with_name(f".{path.name}.tmp")
    try:
        table = pa.Table.from_pandas(side.cases[schema.names], schema, preserve_index=False)
        pq.write_table(table.replace_schema_metadata(metadata), aside, compression="zstd")
        publish(aside, path)
    except OSError as error:
        raise ConfigError(f"--save {target} can't be written: {str(error).splitlines()[0]}") from error


# ---------------------------------------------------------------- samples


def with_samples(side: Side) -> Side:
    """The side with the repetitions of its measured cases; a run whose samples can't be read keeps its medians."""
    import pyarrow as pa

    times: dict[tuple[str, str], Series] = {}
    problems = list(side.problems)
    measured = side.cases[(side.cases["status"] == "ok") & (side.cases["median_s"] > 0)]
    for run_id, cases in measured.groupby("run_id"):
        if run_id not in side.folders:
            continue
        try:
            found = repetition_times(side.folders[str(run_id)], cases)
        except (pa.ArrowException, OSError, ValueError) as error:
            problems.append(f"{side.folders[str(run_id)]}: samples left out: {str(error).splitlines()[0]}")
        else:
            times |= {(str(run_id), case_id): series for case_id, series in found.items()}
    return replace(side, times=times, problems=tuple(problems))


def repetition_times(folder: Path, cases: pd.DataFrame) -> dict[str, Series]:
    """case_id -> seconds an operation of each measured repetition, for the cases of one run that have samples.

    The samples must give the case's own median_s within 1 %, else the case is left out. Raises OSError or
    pyarrow's errors for files that can't be read.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    names = ["case_id", "repetition", "rank", "elapsed_ns"]
    files = [*sorted((folder / "parts").glob("*.samples.parquet")), folder / "samples.parquet"]
    tables = [
        pq.read_table(file, columns=names, filters=[("phase", "==", "measure")]).to_pandas()
        for file in files
        if file.is_file()
    ]
    if not tables:
        return {}
    by_case = dict(iter(pd.concat(tables).sort_values("repetition", kind="stable").groupby("case_id")))
    rows = (case for case in cases.to_dict("records") if case["case_id"] in by_case)
    found = {case["case_id"]: _times(case, by_case[case["case_id"]]) for case in rows}
    return {case_id: times for case_id, times in found.items() if times is not None}


def _times(case: Mapping[Any, Any], samples: pd.DataFrame) -> Series | None:
    """The maximum over all ranks or over the senders, whichever gives the case's median; samples by repetition."""
    pairs = case["pair"].split() if isinstance(case["pair"], str) else []
    senders = samples["rank"].isin([int(pair.split("-")[0]) for pair in pairs])
    parts = [part for part in (samples, samples[senders]) if len(part)]
    scale = 1e-9 / case["operations_per_sample"]
    candidates = [_slowest(part) * scale for part in parts]
    misses = [abs(float(np.median(times)) / case["median_s"] - 1) for times in candidates]
    best = int(np.argmin(misses))
    return candidates[best] if misses[best] <= MEDIAN_TOLERANCE else None


def _slowest(samples: pd.DataFrame) -> Series:
    """Over the ranks of each repetition, nanoseconds."""
    repetition = samples["repetition"].to_numpy()
    starts = np.flatnonzero(np.diff(repetition, prepend=repetition[0] - 1))
    return np.maximum.reduceat(samples["elapsed_ns"].to_numpy(dtype=np.float64), starts)
