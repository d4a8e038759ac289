"""What the page draws from raw tables: distributions of repetitions, soaks over time, ramps after the first call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.core.errors import CommbenchError

from .cold_start import INTERVAL, cold_start
from .load import first_line, frame_of, run_tables
from .samples import Series, repetition_times
from .summary import Results

if TYPE_CHECKING:
    import pandas as pd

MOST_DISTRIBUTIONS, MOST_LAUNCHES, QUANTILES = 120, 6, 61
MOST_SOAKS, MOST_POINTS = 12, 600
LARGEST_FILE = 64 * 2**20  # bytes of samples.parquet; a larger one is a soak, which is drawn over time


@dataclass(frozen=True)
class Distribution:
    """Quantiles [q] in seconds of each launch (run_id, quantiles) of one case; shares [q] run from 0 to 1."""

    case_id: str
    launches: tuple[tuple[str, tuple[float, ...]], ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class TimeLine:
    """A soak: seconds since its start, then minimum, median and maximum seconds per operation in each interval [n]."""

    run_id: str
    case_id: str
    at_s: tuple[float, ...]
    min_s: tuple[float, ...]
    median_s: tuple[float, ...]
    max_s: tuple[float, ...]


@dataclass(frozen=True)
class RawData:
    """What was read; `ramps`: backend -> seconds to 95 % of the steady rate per case; `notes`: what was left out."""

    distributions: dict[str, Distribution]
    time_lines: tuple[TimeLine, ...]
    ramps: dict[str, tuple[float, ...]]
    notes: tuple[str, ...]


def read_raw_data(results: Results) -> RawData:
    """Raw tables of the newest runs that cover the cases; every limit that was met is in the notes."""
    ok = results.cases[results.cases["status"] == "ok"]
    chosen, left = _chosen_runs(results, ok)
    notes = [f"distributions are drawn for {MOST_DISTRIBUTIONS} cases; {left} more have none"] if left else []
    series: dict[str, list[tuple[str, Series]]] = {}
    for run_id, cases in chosen:
        folder = results.folders[run_id]
        try:
            for case_id, times in repetition_times(folder, cases).items():
                series.setdefault(case_id, []).append((run_id, times))
        except CommbenchError as error:
            notes.append(f"{folder}: samples left out: {error}")
    distributions = {case_id: _distribution(case_id, launches) for case_id, launches in series.items()}
    time_lines = _time_lines(results, ok, notes)
    return RawData(distributions, time_lines, _ramps([results.folders[run] for run, _ in chosen], notes), tuple(notes))


def _chosen_runs(results: Results, ok: pd.DataFrame) -> tuple[list[tuple[str, pd.DataFrame]], int]:
    """The newest runs with their cases, as long as they bring cases with fewer than MOST_LAUNCHES; cases left out."""
    readable = [run_id for run_id, folder in results.folders.items() if _is_small(folder / "samples.parquet")]
    wanted = ok[ok["run_id"].isin(readable) & (ok["timing"] != "soak")]
    launches = wanted[::-1].groupby("case_id", sort=False).cumcount()
    wanted = wanted.loc[launches[launches < MOST_LAUNCHES].index]
    newest_last = wanted.drop_duplicates("case_id", keep="last")["case_id"]
    drawn = set(newest_last.iloc[-MOST_DISTRIBUTIONS:])
    runs = wanted[wanted["case_id"].isin(drawn)].groupby("run_id", sort=False)
    return [(str(run_id), cases) for run_id, cases in runs], len(newest_last) - len(drawn)


def _is_small(file: Path) -> bool:
    return file.is_file() and file.stat().st_size <= LARGEST_FILE


def _distribution(case_id: str, launches: Sequence[tuple[str, Series]]) -> Distribution:
    shares = np.linspace(0, 1, QUANTILES)
    quantiles = tuple((run_id, tuple(np.quantile(times, shares).tolist())) for run_id, times in launches)
    return Distribution(case_id, quantiles, tuple(len(times) for _, times in launches))


def _time_lines(results: Results, ok: pd.DataFrame, notes: list[str]) -> tuple[TimeLine, ...]:
    soaks = ok[(ok["timing"] == "soak") & ok["run_id"].isin(list(results.folders))]
    if len(soaks) > MOST_SOAKS:
        notes.append(f"time lines are drawn for {MOST_SOAKS} soaks; {len(soaks) - MOST_SOAKS} more have none")
    keys = [(str(row.run_id), str(row.case_id)) for row in soaks.head(MOST_SOAKS).itertuples()]
    lines = (_time_line(results.folders[run_id], run_id, case_id) for run_id, case_id in keys)
    return tuple(line for line in lines if line is not None)


def _time_line(folder: Path, run_id: str, case_id: str) -> TimeLine | None:
    """From the counters of a soak; None where there are none or they can't be read."""
    import pandas as pd

    try:
        rows = frame_of(run_tables(folder, "counters", None, [("case_id", "==", case_id)]), "counters")
    except CommbenchError:
        return None
    rows = rows[rows["name"].str.startswith(INTERVAL)]
    table = rows.pivot_table(index="t_ns", columns="name", values="value").sort_index()
    if not len(table):
        return None
    bins = np.arange(len(table)) // max(1, -(-len(table) // MOST_POINTS))

    def binned(values: Any, how: str) -> tuple[float, ...]:
        return tuple(values.reset_index(drop=True).groupby(bins).agg(how).tolist())

    seconds = pd.Series((table.index.to_numpy() - table.index[0]) * 1e-9)
    columns = (binned(table[f"{INTERVAL}{how}_s"], how) for how in ("min", "median", "max"))
    return TimeLine(run_id, case_id, binned(seconds, "min"), *columns)


def _ramps(folders: Sequence[Path], notes: list[str]) -> dict[str, tuple[float, ...]]:
    if not folders:
        return {}
    try:
        frame = cold_start(*folders)
    except (CommbenchError, KeyError, ValueError) as error:
        notes.append(f"ramps left out: {first_line(error)}")
        return {}
    ramps = frame[frame["ramp_s"] > 0]
    return {str(backend): tuple(group["ramp_s"].tolist()) for backend, group in ramps.groupby("backend")}
