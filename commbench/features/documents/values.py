"""Runs of an experiment beside what its document published, value by value.

The values are in reference.py. Which rows have a value's setting is said there, too; no code knows
an experiment by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from commbench.analysis.case_names import telling
from commbench.analysis.cold_start import CASE_KEY
from commbench.analysis.families import key
from commbench.analysis.symmetric_pairs import SYMMETRIC
from commbench.core.annexes import FEATURES, annex
from commbench.core.texts import name_of
from commbench.report.plots import OVER_TIME
from commbench.results.columns import grouped
from commbench.results.intervals import interval_of
from commbench.results.row import Measured, Row
from commbench.stats.interval import Certainty, Interval, of_formula
from commbench.stats.verdict import compare_launches

from .reference import UNITS, Point, Reference, fact, is_in_bits, of_experiment

if TYPE_CHECKING:
    import pandas as pd

GIVEN = ("world_size", "message_bytes")  # what a program was given: no result to compare
STREAMS = f"{FEATURES}.streams"  # reads what is stored of soaks
EXPERIMENT = "experiment="  # among the overrides in run.json
MARKS: tuple[Certainty, ...] = get_args(Certainty)  # the least certain last
REPEATED = ("pair", "window")  # alike cases differ in these; a window may shrink with the size
RATIO_SHARED = ("benchmark", "backend", "layout", "device", "dtype", "message_bytes")
# columns whose interval is that of the time
TIMED = ("median_s", "algbw_gb_per_s", "busbw_gb_per_s", "message_rate_per_s", "efficiency")


def least(values: Iterable[Interval]) -> Interval:
    """The least that is certain: of which the upper end is lowest."""
    return min(values, key=lambda each: (each.high, each.value))


def largest(values: Iterable[Interval]) -> Interval:
    """The largest that is certain: of which the lower end is highest."""
    return max(values, key=lambda each: (each.low, each.value))


def middle(values: Sequence[Interval]) -> Interval:
    """A single value, or the median of several, which has no interval: their range says more."""
    return values[0] if len(values) == 1 else Interval(median(each.value for each in values))


STATISTICS: Mapping[str, Callable[[Sequence[Interval]], Interval]] = {
    "min": least,
    "median": middle,
    "max": largest,
}


@dataclass(frozen=True)
class Compared:
    """A published value and ours, in the document's unit: `values` has one of each alike case.

    `message_bytes` is ours; `name` tells ours from others beside the same value, and `stand_in`
    says what ours is where it is not what the document's name says.
    """

    reference: Reference
    point: Point
    message_bytes: int | None
    name: str
    values: tuple[Interval, ...]
    stand_in: str = ""

    @property
    def ours(self) -> Interval:
        return STATISTICS[self.reference.statistic or "median"](self.values)

    @property
    def least_certain(self) -> Interval | None:
        """What says how certain ours is: itself, or of the cases in whose middle it is the least
        certain one; None of a quantity without intervals."""
        known = [each for each in ((self.ours,) if self.ours.of else self.values) if each.of]
        return max(known, key=lambda each: MARKS.index(each.certainty), default=None)

    @property
    def asymmetric(self) -> int:
        """How many ratios of two directions are neither small nor within their intervals."""
        return sum(each.low > 1 and each.value > 1 + SYMMETRIC for each in self.values)

    @property
    def ratio(self) -> float:
        """Ours over the published value; over the nearer end of a range, 1 within it, also where
        one bound is published and met."""
        return self.point.beyond(self.ours.value)

    @property
    def answer(self) -> str | None:
        """`within` a published bound, `above` or `below` it; `undecided` where the intervals hold
        the bound, or are not known. None for other values."""
        point = self.point
        if math.isfinite(point.high - point.low):
            return None
        judged = self.values if len(self.values) > 1 else (self.ours,)
        low = min(each.low for each in judged)
        high = max(each.high for each in judged)
        if point.low <= low and high <= point.high:
            return "within"
        if low > point.high:
            return "above"
        return "below" if high < point.low else "undecided"


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
    rows = [row for row in cases if row.timing != "soak"]
    intervals = None
    streams = annex(f"{STREAMS}.stored")
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
            compared += _ratios(each, fitting)
        else:
            compared += _direct(each, fitting)
    met = {id(each.reference) for each in compared}
    missing = dict.fromkeys(each.title_of_table for each in values if id(each) not in met)
    if len(rows) < len(cases):
        missing[f"those of soaks, which need {STREAMS}"] = None
    return Document(name, tuple(compared), tuple(missing), _bytes_unit(values))


def _bytes_unit(references: Iterable[Reference]) -> str:
    units = dict.fromkeys(each.unit for each in references)
    in_bytes = [unit for unit in units if unit.endswith("B/s")]
    return in_bytes[0] if in_bytes and any(map(is_in_bits, units)) else ""


def _stand_in(reference: Reference, row: Row, libraries: Iterable[str] = ()) -> str:
    """`shared memory`, `2 pairs, one node`; empty for what the document had. `where` begins with
    that."""
    if not reference.fits_first(row):
        return str(row.label or row.transport or "").replace("_", " ")
    parts = [*libraries]
    if reference.ranks not in (None, row.world_size):
        pairs = str(row.pair or "").split()
        parts.append(f"{len(pairs)} pairs" if len(pairs) > 1 else f"{row.world_size} ranks")
    if reference.span == "between" != fact(row, "span"):
        parts.append("one node")
    return ", ".join(parts)


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
    values = tuple(_value(row, reference.column, reference.unit) for row in rows)
    return Compared(reference, point, size, name, values, _stand_in(reference, rows[0]))


def _value(row: Row, column: str, unit: str) -> Interval:
    """A column of a row in that unit; without an interval where its interval is not the time's."""
    measured = interval_of(row, column) if column in TIMED else None
    return 1 / UNITS[unit] * (measured or Interval(fact(row, column)))


def _names(rows: Sequence[Row]) -> list[str]:
    """What tells these cases apart; empty for a single one."""
    names = [name for name in telling(rows) if name != "benchmark"]
    return [name_of(row, names, ()) for row in rows]


def _ratios(reference: Reference, rows: Sequence[Row]) -> Iterator[Compared]:
    """Rows with the first value of a variable over rows with the second: the decisive ratio where
    the document has an upper bound, else that of the largest size. The two directions of a pair
    have no order: theirs is the faster over the slower."""
    assert reference.over is not None
    ((variable, (first, second)),) = reference.over.items()
    (point,) = reference.points
    known = [row for row in rows if getattr(row, reference.of) and point.holds(row.message_bytes)]
    ratios: dict[tuple[str, int], list[Interval]] = {}
    examples: dict[tuple[str, int], Row] = {}  # a row of each
    libraries: dict[str, None] = {}  # that stand in
    for alike in grouped(known, _link).values():
        sides = grouped(alike, lambda row: str(fact(row, variable)))
        if first in sides and second in sides:
            for side, library in reference.libraries.items():
                names = (str(row.library) for row in sides.get(side, ()))
                libraries |= dict.fromkeys(_short(name) for name in names if library not in name)
            ratio = _ratio(reference.of, sides[first], sides[second])
            if reference.is_of_directions and ratio.value < 1:
                ratio = _ratio(reference.of, sides[second], sides[first])
            ratios.setdefault(_place(alike[0]), []).append(1 / UNITS[reference.unit] * ratio)
            examples.setdefault(_place(alike[0]), alike[0])
    by_layout = grouped(ratios, lambda place: place[0])
    for layout, places in by_layout.items():
        name = layout if len(by_layout) > 1 else ""
        chosen = max(places)
        if not math.isfinite(point.low):
            decisive = _decisive(point, [each for place in places for each in ratios[place]])
            chosen = next(place for place in places if decisive in ratios[place])
        stand_in = _stand_in(reference, examples[chosen], libraries)
        found = tuple(ratios[chosen])
        yield Compared(reference, point, chosen[1] or None, name, found, stand_in)


def _decisive(point: Point, ratios: Sequence[Interval]) -> Interval:
    """Of ratios with one upper bound, the largest that is certain where it is above the bound, else
    the one that reaches highest."""
    most = largest(ratios)
    if most.low > point.high:
        return most
    return max(ratios, key=lambda each: (each.high, each.value))


def _place(row: Row) -> tuple[str, int]:
    return row.layout, row.message_bytes


def _ratio(column: str, above: Sequence[Row], below: Sequence[Row]) -> Interval:
    """Of the medians: with the intervals of two rows, or of compare where each side is launches of
    one case."""
    if len(above) == len(below) == 1:
        sides = (_value(row, column, "x") for row in (*above, *below))
        return of_formula(truediv, *sides)
    first, second = (np.array([getattr(row, column) for row in side]) for side in (above, below))
    ratio = compare_launches(second, first, margin=0).ratio
    is_of_launches = all(len({row.case_id for row in side}) == 1 for side in (above, below))
    return ratio if is_of_launches else Interval(ratio.value, n=ratio.n, of=ratio.of)


def _short(library: str) -> str:
    """`Open MPI` of `Open MPI v5.0.11`."""
    return re.split(r"\s+(?:version|v?\d)", library, maxsplit=1, flags=re.IGNORECASE)[0]


def _link(row: Row) -> tuple[Any, ...]:
    """What both sides of a ratio share: both directions are one link."""
    ranks = str(row.pair or "").split("-")
    return (*(getattr(row, name) for name in RATIO_SHARED), *sorted(ranks))


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
        for ids, soak in known.groupby(list(CASE_KEY), sort=False)
        if tuple(map(str, ids)) in cases
    ]
    for point in reference.points:
        rates = (_rate_at(soak, point.at_s or 0.0) for soak in soaks)
        scale = UNITS[reference.unit]
        values = tuple(Interval(rate / scale) for rate in rates if rate is not None)
        if values:
            yield Compared(reference, point, None, "", values, _stand_in(reference, rows[0]))


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
