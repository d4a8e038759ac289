"""What a picture needs from raw tables, thinned: distributions, time lines of soaks, ramps after the first call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.core.errors import CommbenchError

from .cold_start import cold_start
from .compare_input import repetition_times
from .results import Results, Run

if TYPE_CHECKING:
    import pandas as pd

MOST_DISTRIBUTIONS, MOST_LAUNCHES, QUANTILES = 120, 6, 61
MOST_SOAKS, MOST_POINTS = 12, 600
LARGEST_FILE = 64 * 2**20  # bytes of samples.parquet; a larger one is a soak, which has its time line
INTERVAL = "interval."


@dataclass(frozen=True)
class Distribution:
    """Quantiles [q] in seconds of each launch of one case; shares [q] run from 0 to 1."""

    case_id: str
    launches: tuple[tuple[str, tuple[float, ...]], ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class TimeLine:
    """A soak: seconds since its start, then least, median and most seconds of an operation in each interval [n]."""

    run_id: str
    case_id: str
    at_s: tuple[float, ...]
    least_s: tuple[float, ...]
    median_s: tuple[float, ...]
    most_s: tuple[float, ...]


@dataclass(frozen=True)
class Raw:
    """What was read, and a line for each thing that was left out."""

    distributions: dict[str, Distribution]
    lines: tuple[TimeLine, ...]
    ramps: dict[str, tuple[float, ...]]  # backend -> seconds to 95 % of the steady rate, a value a case
    notes: tuple[str, ...]


def raw_of(results: Results) -> Raw:
    """Read the tables of a few runs that show all cases; every cap that was met is in the notes."""
    ok = results.cases[results.cases["status"] == "ok"]
    chosen, left = _chosen(results.runs, ok)
    notes = [f"distributions are drawn for {MOST_DISTRIBUTIONS} cases; {left} more have none"] if left else []
    found: dict[str, list[tuple[str, Any]]] = {}
    for run, cases in chosen:
        notes += _read(run, cases, found)
    lines, more = _time_lines(results.runs, ok)
    ramps, missing = _ramps([run.folder for run, _ in chosen if run.folder])
    distributions = {case_id: _distribution(case_id, series) for case_id, series in found.items()}
    return Raw(distributions, tuple(lines), ramps, (*notes, *more, *missing))


def _chosen(runs: Sequence[Run], ok: pd.DataFrame) -> tuple[list[tuple[Run, pd.DataFrame]], int]:
    """The newest runs first, as long as they bring cases that have fewer than MOST_LAUNCHES."""
    folders = {run.run_id: run for run in runs if run.folder and _readable(run.folder)}
    wanted = ok[ok["run_id"].isin(list(folders)) & (ok["timing"] != "soak")]
    launches = wanted[::-1].groupby("case_id", sort=False).cumcount()
    wanted = wanted.loc[launches[launches < MOST_LAUNCHES].index]
    order = wanted.drop_duplicates("case_id", keep="last")["case_id"]
    few = set(order.iloc[-MOST_DISTRIBUTIONS:])
    wanted = wanted[wanted["case_id"].isin(few)]
    groups = [(folders[str(run_id)], cases) for run_id, cases in wanted.groupby("run_id", sort=False)]
    return groups, len(order) - len(few)


def _readable(folder: Path) -> bool:
    file = folder / "samples.parquet"
    return file.is_file() and file.stat().st_size <= LARGEST_FILE


def _read(run: Run, cases: pd.DataFrame, found: dict[str, list[tuple[str, Any]]]) -> list[str]:
    import pyarrow as pa

    assert run.folder is not None
    try:
        times = repetition_times(run.folder, cases)
    except (pa.ArrowException, OSError, ValueError) as error:
        return [f"{run.folder}: samples left out: {str(error).splitlines()[0]}"]
    for case_id, series in times.items():
        found.setdefault(case_id, []).append((run.run_id, series))
    return []


def _distribution(case_id: str, series: Sequence[tuple[str, Any]]) -> Distribution:
    shares = np.linspace(0, 1, QUANTILES)
    quantiles = tuple((run_id, tuple(np.quantile(times, shares).tolist())) for run_id, times in series)
    return Distribution(case_id, quantiles, tuple(len(times) for _, times in series))


# ---------------------------------------------------------------- soaks and ramps


def _time_lines(runs: Sequence[Run], ok: pd.DataFrame) -> tuple[list[TimeLine], list[str]]:
    soaked = ok[ok["timing"] == "soak"]
    folders = {run.run_id: run.folder for run in runs if run.folder}
    pairs = [(str(run), str(case)) for run, case in zip(soaked["run_id"], soaked["case_id"], strict=True)]
    known = [(run, case) for run, case in pairs if run in folders]
    lines = [line for run, case in known[:MOST_SOAKS] if (line := _time_line(folders[run], run, case)) is not None]
    left = len(known) - MOST_SOAKS
    return lines, [f"time lines are drawn for {MOST_SOAKS} soaks; {left} more have none"] if left > 0 else []


def _time_line(folder: Path, run_id: str, case_id: str) -> TimeLine | None:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = [*sorted((folder / "parts").glob("*.counters.parquet")), folder / "counters.parquet"]
    chosen = [("case_id", "==", case_id)]
    try:
        parts = [pq.read_table(file, filters=chosen).to_pandas() for file in files if file.is_file()]
    except (pa.ArrowException, OSError):
        return None
    if not parts:
        return None
    rows = pd.concat(parts).drop_duplicates(["rank", "t_ns", "name"], keep="last")
    rows = rows[rows["name"].str.startswith(INTERVAL)]
    table = rows.pivot_table(index="t_ns", columns="name", values="value").sort_index()
    if not len(table):
        return None
    bins = np.arange(len(table)) // max(1, -(-len(table) // MOST_POINTS))
    seconds = ((table.index.to_numpy() - table.index[0]) * 1e-9).tolist()
    columns = {how: table[f"{INTERVAL}{how}_s"].reset_index(drop=True) for how in ("min", "median", "max")}
    middle = (_binned(column, bins, how) for how, column in columns.items())
    return TimeLine(run_id, case_id, _binned(pd.Series(seconds), bins, "min"), *middle)


def _binned(values: Any, bins: Any, how: str) -> tuple[float, ...]:
    return tuple(values.groupby(bins).agg(how).tolist())


def _ramps(folders: Iterable[Path]) -> tuple[dict[str, tuple[float, ...]], list[str]]:
    listed = list(folders)
    if not listed:
        return {}, []
    try:
        frame = cold_start(*listed)
    except (CommbenchError, KeyError, ValueError) as error:
        return {}, [f"ramps left out: {str(error).splitlines()[0]}"]
    known = frame[frame["ramp_s"] > 0]
    return {str(name): tuple(group["ramp_s"].tolist()) for name, group in known.groupby("backend")}, []
