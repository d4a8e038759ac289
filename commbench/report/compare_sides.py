"""The two sides of a comparison: what was read, and which of their rows belong together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.columns import CASES, SCHEMA_VERSION, VARIABLES, arrow_schema
from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.run_folder import publish

from .load import KEYS, NEEDED, RUNS, find_runs, first_line, frame_of, read_cases
from .samples import Series, repetition_times

if TYPE_CHECKING:
    import pandas as pd

NAMES = tuple(column.name for column in VARIABLES)
PAYLOAD = ("benchmark", "dtype", "message_bytes", "count")  # what was moved: must be equal on both sides
BYTES_TOLERANCE = 1e-6
KINDS = {"number": "float64", "integer": "Int64"}  # the same for every source, also where all values are null

Row = Mapping[Any, Any]


@dataclass(frozen=True)
class Side:
    """BASE or NEW. `folders`: the runs whose samples can be read; `problems`: a line for each thing left out."""

    name: str
    cases: pd.DataFrame
    runs: tuple[dict[str, Any], ...] = ()
    folders: Mapping[str, Path] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    label: str = ""
    times: Mapping[tuple[str, str], Series] = field(default_factory=dict)  # run_id, case_id -> see with_samples


def read_side(name: str, sources: Iterable[str | Path | pd.DataFrame]) -> Side:
    """Everything that can be read; what can't be is in `problems`. Raises ConfigError where nothing is left."""
    import pandas as pd

    frames: list[pd.DataFrame] = []
    runs: dict[str, dict[str, Any]] = {}
    folders: dict[str, Path] = {}
    problems: list[str] = []
    labels = []
    for source in sources:
        labels.append(str(source) if isinstance(source, (str, Path)) else "a data frame")
        if not isinstance(source, (str, Path)):
            try:
                frames.append(_with_all_columns(source, "a data frame"))
            except CommbenchError as error:
                problems.append(str(error))
            continue
        path = Path(source)
        if not path.is_file() and not (path.is_dir() and find_runs(path)):
            raise ConfigError(f"{name}={path} is neither a folder with runs (run.json) nor a parquet file of cases")
        found, unreadable = read_cases([path])
        problems += unreadable.values()
        for part in found:
            problems += [] if part.has_version else [f"{path} names no schema version: taken as {SCHEMA_VERSION}"]
            runs |= {str(record.get("run_id")): record for record in part.records}
            frames.append(_with_all_columns(frame_of([part.cases]), str(part.path)))
            folders |= dict.fromkeys(frames[-1]["run_id"].unique(), part.path) if part.path.is_dir() else {}
    if not frames:
        raise ConfigError(f"{name} has nothing to compare: {'; '.join(problems) or 'no cases in it'}")
    cases = pd.concat(frames, ignore_index=True).drop_duplicates(KEYS["cases"], keep="last", ignore_index=True)
    return Side(name, cases, tuple(runs.values()), folders, tuple(problems), ", ".join(labels))


def _with_all_columns(cases: pd.DataFrame, where: str) -> pd.DataFrame:
    """A copy with all columns that a comparison reads; raises CommbenchError for a frame of something else."""
    missing = [name for name in NEEDED["cases"] if name not in cases.columns]
    if missing:
        seen = ", ".join(str(name) for name in cases.columns[:6]) or "none"
        raise CommbenchError(
            f"{where} is not a table of cases: it has the columns {seen}, but not {', '.join(missing)}"
        )
    if not len(cases):
        raise CommbenchError(f"{where} has no cases")
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


def with_samples(side: Side) -> Side:
    """The side with the repetitions of its measured cases; a run whose samples can't be read keeps its medians."""
    times: dict[tuple[str, str], Series] = {}
    problems = list(side.problems)
    measured = side.cases[(side.cases["status"] == "ok") & (side.cases["median_s"] > 0)]
    for run_id, cases in measured.groupby("run_id"):
        folder = side.folders.get(str(run_id))
        if folder is not None:
            try:
                series = repetition_times(folder, cases)
            except CommbenchError as error:
                problems.append(f"{folder}: samples left out: {error}")
            else:
                times |= {(str(run_id), case_id): one for case_id, one in series.items()}
    return replace(side, times=times, problems=tuple(problems))


def check_target(target: str | Path) -> None:
    """Raises ConfigError where save could not write."""
    path = Path(target)
    if path.is_dir():
        raise ConfigError(f"--save {path} is a folder; give the name of a parquet file")
    if not path.parent.is_dir():
        raise ConfigError(f"--save {path}: there is no folder {path.parent}")


def save(side: Side, target: str | Path) -> None:
    """Write the side's cases and run records as one parquet file for a later --against, without samples."""
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
        raise ConfigError(f"--save {target} can't be written: {first_line(error)}") from error


# ---------------------------------------------------------------- which rows belong together


@dataclass(frozen=True)
class Difference:
    """A variable in which BASE and NEW may differ; the values, where given, select the rows of each side."""

    name: str
    base: str | None = None
    new: str | None = None


def parse_by(words: Iterable[str]) -> tuple[Difference, ...]:
    """`backend` or `backend=gloo:mpi`; raises ConfigError for unknown variables and for the payload."""
    return tuple(_difference(word.strip()) for word in words if word.strip())


def _difference(word: str) -> Difference:
    name, given, values = word.partition("=")
    allowed = ", ".join(one for one in NAMES if one not in PAYLOAD)
    if name in PAYLOAD:
        raise ConfigError(f"--by {name}: different payloads can't be compared; allowed: {allowed}")
    if name not in NAMES:
        raise ConfigError(f"--by {name} is not a variable; allowed: {allowed}")
    base, colon, new = values.partition(":")
    if given and not (base and colon and new):
        raise ConfigError(f"--by {word} is not NAME or NAME=BASE:NEW, e.g. --by backend=gloo:mpi")
    return Difference(name, base or None, new or None)


def plain(value: Any) -> Any:
    """The value of a variable as in JSON: any kind of null as None, whole numbers as int, maps as sorted pairs."""
    value = value.tolist() if hasattr(value, "tolist") else value  # numpy's arrays and scalars
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, (list, tuple)):
        return sorted([str(name), str(one)] for name, one in value if one is not None)
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value if isinstance(value, (str, int)) else None  # pandas has several nulls


def text(value: Any) -> str:
    """The value of a variable as text: none, false, A=1 B=2."""
    value = plain(value)
    if isinstance(value, list):
        return " ".join("=".join(pair) for pair in value) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def key_of(row: Row, by: Iterable[str]) -> str:
    """The values of all variables except `by` as JSON; rows with equal keys are compared."""
    excluded = set(by)
    return json.dumps([plain(row[name]) for name in NAMES if name not in excluded])


def rows_by_key(side: Side, by: Sequence[Difference]) -> dict[str, list[Row]]:
    """Key -> the selected rows of a side in the order of their runs, one per run (of two attempts the later).

    Raises ConfigError where nothing is selected, where a side has several values of what is compared, or where the
    rows of a key are not alike.
    """
    cases = side.cases
    for one in by:
        wanted = getattr(one, side.name.lower())
        if wanted is not None:
            seen = [text(value) for value in cases[one.name]]
            if wanted not in seen:
                values = ", ".join(sorted(set(seen)))
                raise ConfigError(f"{side.name} has no case with {one.name}={wanted}; it has {values}")
            cases = cases[[value == wanted for value in seen]]
    by_key: dict[str, dict[str, Row]] = {}
    for row in cases.to_dict("records"):
        runs = by_key.setdefault(key_of(row, (one.name for one in by)), {})
        first_row = next(iter(runs.values()), row)
        for name in (one.name for one in by):
            first, last = text(first_row[name]), text(row[name])
            if first != last:
                raise ConfigError(
                    f"{side.name} has {name} {first} and {last} for the same case; select with --by {name}=BASE:NEW"
                )
        runs[row["run_id"]] = row
    return {key: [runs[run_id] for run_id in sorted(runs)] for key, runs in by_key.items()}


def check_alike(name: str, rows: Sequence[Row]) -> None:
    """Raises ConfigError where rows of one key moved different payloads or were timed by different clocks."""
    clocks = {row["clock"] for row in rows if isinstance(row["clock"], str)}
    if len(clocks) > 1:
        raise ConfigError(f"{name}: seconds of different clocks ({', '.join(sorted(clocks))}) can't be compared")
    sizes = [row["algbw_gb_per_s"] * 1e9 * row["median_s"] for row in rows]
    known = sorted(size for size in sizes if math.isfinite(size))
    if known and known[-1] > known[0] * (1 + BYTES_TOLERANCE):
        raise ConfigError(
            f"{name}: different payloads, {known[0]:.0f} B and {known[-1]:.0f} B per operation, can't be compared"
        )


def without_common_value(base: Side, new: Side) -> list[str]:
    """Variables of which the sides have no value in common, as NAME (a / b): why no case is on both sides."""
    differing = []
    for name in NAMES:
        values = [{text(value) for value in side.cases[name]} for side in (base, new)]
        if not values[0] & values[1]:
            differing.append(f"{name} ({', '.join(sorted(values[0])[:4])} / {', '.join(sorted(values[1])[:4])})")
    return differing
