"""Cases as curves over message size, and Hockney's model fitted to them: T(m) = alpha + beta m, piecewise.

Each piece minimises the sum of squared relative residuals, (T - fit) / T, so that microseconds count as much as
seconds. Neither alpha nor beta is negative. A new piece begins where the protocol changes.
Reference: R. Hockney, Parallel Computing 20 (1994) 389.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.columns import VARIABLES
from commbench.core.errors import CommbenchError

from .difference import FEW_LAUNCHES, Measured
from .load import as_stored, row_dicts

if TYPE_CHECKING:
    import pandas as pd

Sizes = NDArray[np.int64]
Times = NDArray[np.float64]
Row = Mapping[str, Any]

# What the cases of a family share: all variables but the size, and whose numbers they are
SHARED = (*(column.name for column in VARIABLES if column.name not in ("message_bytes", "elements")), "label", "hosts")
WHOSE = ("library", "label", "hosts")  # named where several have the same case
OF_BACKEND = ("library", "backend_options")
COMPANIONS = {"backend": ("engine", "streams", *OF_BACKEND), "layout": ("pair", "hosts")}  # that a choice implies
FAMILY_COLUMNS = ("benchmark", "status", "message_bytes", "median_s", "ci_low_s", "ci_high_s")

MOST_PIECES, LEAST_POINTS = 3, 3
GOOD_FIT = 0.25  # a piece that misses a size by more answers nothing
GOOD = 0.01  # a line that misses no size by more is not split
CLEAR_FACTOR = 4.0  # the sum of squares must shrink by this factor (residuals halve) ...
CLEAR_F = 10.0  # ... and the F statistic exceed this: by simulation noise alone does in 2 % of series of 6 to 30 sizes
NOTHING = 1e-30  # a sum of squares below which only rounding errors are left


@dataclass(frozen=True, eq=False)
class Family:
    """Cases that differ only in their size: `sizes` in bytes, ascending, and the time of one operation at each of them.

    A window that shrinks at large messages stays in its family; `variables` has the window that was requested.
    """

    variables: Mapping[str, Any]
    sizes: NDArray[np.int64]
    times: tuple[Measured, ...]

    @functools.cached_property
    def median_s(self) -> Times:
        """Of several launches the median."""
        return np.array([time.median_s for time in self.times])

    @functools.cached_property
    def low_s(self) -> Times:
        """Of several launches the widest interval, which contains the median of each; NaN: no interval."""
        return np.array([time.low_s for time in self.times])

    @functools.cached_property
    def high_s(self) -> Times:
        """See low_s."""
        return np.array([time.high_s for time in self.times])

    @property
    def launches(self) -> int:
        """The largest number of one size."""
        return max(len(time.medians) for time in self.times)

    def at(self, size: int) -> Measured:
        """The time at a measured size."""
        return self.times[int(np.searchsorted(self.sizes, size))]


def families(cases: pd.DataFrame) -> list[Family]:
    """All families with at least one size, in an order that does not depend on that of the rows.

    Raises CommbenchError where a column is missing.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in _case_rows(cases):
        if _unusable(row) is None and row["message_bytes"] > 0:
            groups.setdefault(key(row, without=("window",)), []).append(row)
    split = [family for rows in groups.values() for family in by_window(rows)]
    return sorted((_family(window, rows) for window, rows in split), key=_family_order)


def answerable(cases: pd.DataFrame) -> pd.DataFrame:
    """Without what can't answer a question about machines: one rank that moves nothing, and simulated cases beside real
    ones."""
    cases = as_stored(cases)
    if "world_size" in cases.columns:
        cases = cases[cases["world_size"] != 1]
    simulated = cases["engine"] == "virtual" if "engine" in cases.columns else None
    return cases if simulated is None or simulated.all() else cases[~simulated]


def ignored(cases: pd.DataFrame) -> dict[str, int]:
    """Why rows are in no family (skipped, failed, invalid, ok without a time) -> how many rows."""
    reasons = [reason for reason in map(_unusable, _case_rows(cases)) if reason is not None]
    return {reason: reasons.count(reason) for reason in sorted(set(reasons))}


def _case_rows(cases: pd.DataFrame) -> list[Row]:
    cases = as_stored(cases)
    absent = [name for name in FAMILY_COLUMNS if name not in cases.columns]
    if absent:
        raise CommbenchError(f"the cases have no column {', '.join(absent)}; give what commbench.load returns")
    return [row | {"label": row.get("label") or None} for row in row_dicts(cases)]


def hashable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _unusable(row: Row) -> str | None:
    """Why a row is in no family; None where it is usable."""
    if row["status"] != "ok":
        return str(row["status"])
    time, size = row["median_s"], row["message_bytes"]
    usable = time is not None and size is not None and 0 < time < math.inf
    return None if usable else "ok without a time"


def by_window(rows: Sequence[Row]) -> list[tuple[Any, list[Row]]]:
    """Rows by requested window: beyond the largest size measured with it, the rows of the largest smaller window."""
    smallest = min(row["message_bytes"] for row in rows)
    requested = {row.get("window") for row in rows if row["message_bytes"] == smallest}
    groups, used = [], set()
    for window in requested:
        exact = [row for row in rows if row.get("window") == window]
        group = exact + _shrunk_rows(rows, window, max(row["message_bytes"] for row in exact))
        groups.append((window, group))
        used |= {id(row) for row in group}
    rest = [row for row in rows if id(row) not in used]
    return groups + (by_window(rest) if rest else [])


def _shrunk_rows(rows: Sequence[Row], window: Any, largest: int) -> list[Row]:
    """Rows beyond the largest size whose window is smaller than the requested one."""
    limit = window or 0
    beyond = [row for row in rows if row["message_bytes"] > largest and (row.get("window") or math.inf) < limit]
    widest: dict[int, int] = {}
    for row in beyond:
        widest[row["message_bytes"]] = max(row["window"], widest.get(row["message_bytes"], 0))
    return [row for row in beyond if row["window"] == widest[row["message_bytes"]]]


def _family_order(family: Family) -> tuple[str, ...]:
    texts = (str(hashable(value)) for name, value in family.variables.items() if name != "window")
    return (*texts, f"{family.variables['window'] or 0:09}")


def _family(window: Any, rows: Sequence[Row]) -> Family:
    by_size: dict[int, list[Row]] = {}
    for row in rows:
        by_size.setdefault(row["message_bytes"], []).append(row)
    sizes = sorted(by_size)
    variables = {name: rows[0].get(name) for name in SHARED} | {"window": window}
    times = tuple(_combined(by_size[size]) for size in sizes)
    return Family(variables, np.array(sizes, dtype=np.int64), times)


def _combined(rows: Sequence[Row]) -> Measured:
    """The rows of one size; a row may stand for several runs (recommend.choice_of), with the `medians` of launches."""
    medians = tuple(
        seconds
        for row in rows
        for seconds in row.get("medians")
        or launch_medians(row["median_s"], row.get("visit_medians_s"), row.get("visit_segments"))
    )
    low, high = ([row[name] for row in rows if row[name] is not None] for name in ("ci_low_s", "ci_high_s"))
    stated = [float(row["median_s"]) for row in rows]
    ends = (min(*low, *stated), max(*high, *stated)) if low and high else (math.nan, math.nan)
    level = min((row["interval_level"] for row in rows if row.get("interval_level")), default=0.95)
    in_visits = len(rows) == 1 and rows[0].get("interval_of") in ("visits", "launches")
    run_id = rows[0].get("run_id") if in_visits else None
    return Measured(medians, ends[0], ends[1], level, run_id, stated[0] if len(rows) == 1 else None)


def launch_medians(median_s: float, visits: Any, segments: Any) -> list[float]:
    """The median of each launch of a row, from the medians and segments of its visits, if those are of a few launches
    (timing=rigorous); else the row's own."""
    by_launch: dict[float, list[float]] = {}
    if isinstance(visits, Iterable) and isinstance(segments, Iterable):
        for seconds, segment in zip(visits, segments, strict=True):
            by_launch.setdefault(float(segment), []).append(float(seconds))
    few = len(by_launch) < FEW_LAUNCHES
    return [median_s] if few else [float(np.median(seconds)) for seconds in by_launch.values()]


def varying(variables: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the variables that differ between these, in the order of the columns.

    A backend implies its library and options: they differ where one backend has several.
    """
    differing: dict[str, dict[Any, set[Any]]] = {name: {} for name in SHARED}
    for values in variables:
        for name, seen in differing.items():
            backend = values.get("backend") if name in OF_BACKEND else None
            seen.setdefault(backend, set()).add(hashable(values.get(name)))
    return [name for name, seen in differing.items() if any(len(distinct) > 1 for distinct in seen.values())]


def key(variables: Mapping[str, Any], without: Iterable[str] = ()) -> tuple[Any, ...]:
    """A key that families share if they differ only in `without`."""
    return tuple(hashable(variables.get(name)) for name in SHARED if name not in without)


# ---------------------------------------------------------------- Hockney's model


@dataclass(frozen=True)
class Piece:
    """The line of sizes[first:last]: alpha in seconds, beta in seconds per byte, and the relative residual of each."""

    first: int
    last: int
    alpha_s: float
    beta_s_per_byte: float
    residuals: tuple[float, ...]

    @functools.cached_property
    def squares(self) -> float:
        return math.fsum(residual * residual for residual in self.residuals)

    @property
    def largest_residual(self) -> float:
        return max(map(abs, self.residuals))

    @property
    def asymptotic_gb_per_s(self) -> float | None:
        """1 / beta; None where beta is 0, because these sizes do not show the cost of a byte."""
        return 1e-9 / self.beta_s_per_byte if self.beta_s_per_byte else None

    @property
    def n_half_bytes(self) -> float | None:
        """alpha / beta, the size that reaches half of the asymptotic rate; None where beta is 0."""
        return self.alpha_s / self.beta_s_per_byte if self.beta_s_per_byte else None

    def at(self, size: float) -> float:
        """Seconds for a message of that many bytes."""
        return self.alpha_s + self.beta_s_per_byte * size


def pieces(sizes: Sizes, times: Times) -> list[Piece]:
    """One to three lines that cover the sizes [n >= 1, ascending] in order: as few as explain the times [n]."""
    chosen = [_fitted_line(sizes, times, 0, sizes.size)]
    if chosen[0].largest_residual <= GOOD or sizes.size < 2 * LEAST_POINTS:
        return chosen
    stops = sizes.size + 1
    lines = {  # of every stretch that may be a piece
        (first, last): _fitted_line(sizes, times, first, last)
        for first in range(stops - LEAST_POINTS)
        for last in range(first + LEAST_POINTS, stops)
    }
    for count in range(2, min(MOST_PIECES, sizes.size // LEAST_POINTS) + 1):
        splits = ([lines[ends] for ends in split] for split in _splits(sizes.size, count))
        candidate = min(splits, key=_squares)
        if _clearly_better(candidate, chosen, sizes.size):
            chosen = candidate
    return chosen


def _squares(lines: Sequence[Piece]) -> float:
    return sum(line.squares for line in lines)


def _clearly_better(more: Sequence[Piece], fewer: Sequence[Piece], points: int) -> bool:
    """The F statistic of nested models; a piece costs three parameters, its line and where it begins."""
    before, after = _squares(fewer), max(_squares(more), NOTHING)
    extra, freedom = 3 * (len(more) - len(fewer)), max(points - 3 * len(more) + 1, 1)
    statistic = (before - after) / extra / (after / freedom)
    return before >= CLEAR_FACTOR * after and statistic > CLEAR_F


def _splits(points: int, count: int, first: int = 0) -> list[tuple[tuple[int, int], ...]]:
    """All ways to cut first..points into `count` stretches of at least LEAST_POINTS."""
    if count == 1:
        return [((first, points),)]
    lasts = range(first + LEAST_POINTS, points - LEAST_POINTS * (count - 1) + 1)
    return [((first, last), *rest) for last in lasts for rest in _splits(points, count - 1, last)]


def _fitted_line(sizes: Sizes, times: Times, first: int, last: int) -> Piece:
    """The least squares of 1 - alpha / T - beta m / T; where one of the two would be negative, it is 0."""
    time = times[first:last]
    columns = np.stack([1 / time, sizes[first:last] / time], axis=1)
    scale = np.sqrt((columns**2).sum(axis=0))
    unit = columns / scale
    solution = np.linalg.lstsq(unit, np.ones(time.size), rcond=None)[0] if time.size > 1 else np.array([-1.0, 0.0])
    if (solution < 0).any():
        each = np.diag(unit.sum(axis=0))  # alpha alone, beta alone
        solution = min(each, key=lambda candidate: float(((1 - unit @ candidate) ** 2).sum()))
    misses = 1 - unit @ solution
    alpha, beta = (solution / scale).tolist()
    return Piece(first, last, alpha, beta, tuple(misses.tolist()))
