"""Runs of an experiment beside what its document published, value by value.

The values are in reference.py. Which rows have a value's setting is said there, too; no code knows
an experiment by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.analysis.case_names import telling
from commbench.analysis.families import key
from commbench.core.annexes import SOAKS, annex
from commbench.core.texts import name_of
from commbench.report.plots import OVER_TIME
from commbench.results.columns import grouped
from commbench.results.load import CASE_KEY
from commbench.results.row import Measured, Row
from commbench.stats.interval import Interval

from .comparison import Compared, stand_in, value_in_unit
from .ratios import compared_ratios
from .reference import UNITS, Point, Reference, fact, is_in_bits, of_experiment

if TYPE_CHECKING:
    import pandas as pd

GIVEN = ("world_size", "message_bytes")  # what a program was given: no result to compare
EXPERIMENT = "experiment="  # among the overrides in run.json
REPEATED = ("pair", "window")  # alike cases differ in these; a window may shrink with the size


@dataclass(frozen=True)
class Document:
    """The values of one experiment: those with a measured case, and the settings without one.

    `bytes_unit`: of its rates in bytes, where others are in bits: `MB/s`, else empty.
    """

    experiment: str
    compared: tuple[Compared, ...]
    missing: tuple[str, ...]
    bytes_unit: str


def experiment_of(record: Mapping[str, Any]) -> str | None:
    """The experiment that a run belongs to, from its run.json."""
    given = record.get("overrides")
    words = [str(word).lstrip("+") for word in given] if isinstance(given, list) else []
    names = [word.removeprefix(EXPERIMENT) for word in words if word.startswith(EXPERIMENT)]
    return names[-1] if names else None


def documents(
    rows: Iterable[Row], records: Iterable[Mapping[str, Any]], folders: Mapping[str, Path]
) -> list[Document]:
    """Each document whose experiment is among the runs; `folders`: run_id -> where the intervals of
    soaks are read."""
    runs = grouped(records, experiment_of)
    by_run = grouped((row for row in rows if isinstance(row, Measured)), lambda row: row.run_id)
    found = []
    for name, own in runs.items():
        every = of_experiment(name) if name is not None else []
        values = [each for each in every if each.column not in GIVEN]
        ids = [str(record.get("run_id")) for record in own]
        measured = [row for run in dict.fromkeys(ids) for row in by_run.get(run, ())]
        if values and measured:
            where = dict.fromkeys(folders[run] for run in ids if run in folders)
            found.append(_document(str(name), values, measured, [*where], own))
    return found


def _document(
    name: str,
    values: Sequence[Reference],
    cases: Sequence[Row],
    folders: Sequence[Path],
    records: Sequence[Mapping[str, Any]],
) -> Document:
    rows = [row for row in cases if not row.is_soak]
    intervals = None
    streams = annex(f"{SOAKS}.stored")
    if streams is not None:
        rows = streams.until_full_speed(cases, records)
        is_timed = any(each.column == OVER_TIME for each in values)
        intervals = streams.stored_intervals(cases, folders) if is_timed else None
    compared: list[Compared] = []
    by_run = sorted(rows, key=lambda row: row.run_id)
    own = [*dict.fromkeys(str(row.label) for row in by_run if row.label)]
    values = [each.with_labels(own) for each in values]
    for each in values:
        fitting = [row for row in rows if each.fits(row)]
        if each.column == OVER_TIME:
            compared += _over_time(each, fitting, intervals)
        elif each.over is not None:
            compared += compared_ratios(each, fitting)
        else:
            compared += _direct(each, fitting)
    met = {id(each.reference) for each in compared}
    missing = dict.fromkeys(each.title_of_table for each in values if id(each) not in met)
    if len(rows) < len(cases):
        missing[f"those of soaks, which need {SOAKS}"] = None
    return Document(name, tuple(compared), tuple(missing), _bytes_unit(values))


def _bytes_unit(references: Iterable[Reference]) -> str:
    units = dict.fromkeys(each.unit for each in references)
    in_bytes = [unit for unit in units if unit.endswith("B/s")]
    return in_bytes[0] if in_bytes and any(map(is_in_bits, units)) else ""


def _direct(reference: Reference, rows: Sequence[Row]) -> Iterator[Compared]:
    """A column of the rows: at the size of the point, or of each case the largest size in its
    range. A statistic is over all cases and sizes."""
    known = [row for row in rows if fact(row, reference.column) is not None]
    for point in reference.points:
        inside = [row for row in known if point.holds(row.message_bytes)]
        if reference.statistic and inside:
            yield _compared(reference, point, inside, None, "")
            continue
        cases = grouped(inside, lambda row: key(row, without=REPEATED))
        names = _names([alike[0] for alike in cases.values()])
        for name, alike in zip(names, cases.values(), strict=True):
            largest = max(row.message_bytes for row in alike)
            at_largest = [row for row in alike if (row.message_bytes) == largest]
            yield _compared(reference, point, at_largest, largest or None, name)


def _compared(
    reference: Reference, point: Point, rows: Sequence[Row], size: int | None, name: str
) -> Compared:
    values = tuple(value_in_unit(row, reference.column, reference.unit) for row in rows)
    return Compared(reference, point, size, name, values, stand_in(reference, rows[0]))


def _names(rows: Sequence[Row]) -> list[str]:
    """What tells these cases apart; empty for a single one."""
    names = [name for name in telling(rows) if name != "benchmark"]
    return [name_of(row, names, ()) for row in rows]


# ---------------------------------------------------------------- over time


def _over_time(
    reference: Reference, rows: Sequence[Row], intervals: pd.DataFrame | None
) -> Iterator[Compared]:
    """Of the intervals of each of these soaks."""
    cases = {tuple(str(getattr(row, name)) for name in CASE_KEY) for row in rows}
    if intervals is None or not cases:
        return
    known = intervals[intervals[OVER_TIME].notna()]
    soaks = [
        soak.sort_values("at_s")
        for ids, soak in known.groupby(CASE_KEY, sort=False)
        if tuple(map(str, ids)) in cases
    ]
    for point in reference.points:
        rates = (_rate_at(soak, point.at_s or 0.0) for soak in soaks)
        scale = UNITS[reference.unit]
        values = tuple(Interval(rate / scale) for rate in rates if rate is not None)
        if values:
            yield Compared(reference, point, None, "", values, stand_in(reference, rows[0]))


def _rate_at(soak: pd.DataFrame, at_s: float) -> float | None:
    """The rate of the interval that ends at about that time; None where the soak was shorter."""
    starts_s = soak["at_s"].to_numpy()
    if len(starts_s) < 2:
        return None
    step_s = float(np.median(np.diff(starts_s)))
    begun = soak[starts_s <= at_s - step_s / 2]
    if not len(begun) or starts_s[-1] + 1.5 * step_s < at_s:
        return None
    return float(begun[OVER_TIME].iloc[-1])
