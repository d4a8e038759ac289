"""Cases as curves over message size, and Hockney's model fitted to them: T(m) = alpha + beta m,
piecewise.

Each piece minimises the sum of squared relative residuals, (T - fit) / T, so that microseconds
count as much as seconds. Neither alpha nor beta is negative. A new piece begins where the protocol
changes. Reference: R. Hockney, Parallel Computing 20 (1994) 389.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from commbench.core.units import natural_key
from commbench.core.variables import MODEL_ENGINE
from commbench.results.columns import grouped
from commbench.results.intervals import interval_of
from commbench.results.row import Measured, Row
from commbench.stats.difference import Measured as Time
from commbench.stats.interval import widest
from commbench.stats.launches import launch_medians

from .case_names import FAMILY_VARIABLES
from .combined_row import Combined

AnyRow = TypeVar("AnyRow", bound=Row)
Sizes = NDArray[np.int64]
Times = NDArray[np.float64]

WHOSE = ("library", "label", "hosts")  # part of a case's name only where they differ

MOST_PIECES = 3
MOST_CUTS = 48  # the stretches between them are fitted, each over all of its points
LEAST_POINTS = 3
GOOD_FIT = 0.25  # a piece that misses a size by more answers nothing
GOOD = 0.01  # a line that misses no size by more is not split
CLEAR_FACTOR = 4.0  # the sum of squares must shrink by this factor (residuals halve) ...
# ... and the F statistic exceed this: by simulation noise alone does in 2 % of series of 6 to 30
# sizes
CLEAR_F = 10.0
NOTHING = 1e-30  # a sum of squares below which only rounding errors are left


@dataclass(frozen=True, eq=False)
class Family:
    """Cases that differ only in their size: `sizes` in bytes, ascending, and the time of one
    operation at each of them.

    A window that shrinks at large messages stays in its family. `variables` is the row of its
    smallest case, with the window that was requested.
    """

    variables: Row
    sizes: Sizes
    times: tuple[Time, ...]

    @functools.cached_property
    def median_s(self) -> Times:
        """The median over launches at each size."""
        return np.array([time.median_s for time in self.times])

    @functools.cached_property
    def low_s(self) -> Times:
        """The lower ends of the widest interval over launches, which contains the median of each;
        NaN: no interval."""
        return np.array([time.median.ends[0] for time in self.times])

    @functools.cached_property
    def high_s(self) -> Times:
        """See low_s."""
        return np.array([time.median.ends[1] for time in self.times])

    @property
    def launches(self) -> int:
        """The largest number of launches of a size."""
        return max(len(time.launches_s) for time in self.times)

    def at(self, size: int) -> Time:
        """The time at a measured size."""
        return self.times[int(np.searchsorted(self.sizes, size))]


def families(rows: Iterable[Row]) -> list[Family]:
    """All families in an order that does not depend on that of the rows."""
    usable = (row for row in rows if isinstance(row, Measured) and _is_usable(row))
    with_message = (row for row in usable if row.message_bytes)
    groups = grouped(
        with_message, lambda row: (row.label or None, *key(row, without=("window", "label")))
    )
    all_families = []
    for window, alike in itertools.chain.from_iterable(map(by_window, groups.values())):
        by_size = dict(sorted(grouped(alike, lambda row: row.message_bytes).items()))
        first = next(iter(by_size.values()))[0]
        times = tuple(map(_combined, by_size.values()))
        variables = replace(first, window=window, label=first.label or None)
        all_families.append(Family(variables, np.array(list(by_size), dtype=np.int64), times))
    texts = [name for name in FAMILY_VARIABLES if name != "window"]
    return sorted(
        all_families,
        key=lambda family: (
            *(natural_key(getattr(family.variables, name)) for name in texts),
            family.variables.window or 0,
        ),
    )


def answerable(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """The cases without those of one rank, which move nothing, and without simulated ones beside
    real ones."""
    moving = [row for row in rows if row.world_size != 1]
    return [row for row in moving if row.engine != MODEL_ENGINE] or moving


def ignored(rows: Iterable[Row]) -> dict[str, int]:
    """Why rows are in no family (skipped, failed, invalid, ok without a time) -> how many rows."""
    reasons = (
        row.status if row.status != "ok" else "ok without a time"
        for row in rows
        if not (isinstance(row, Measured) and _is_usable(row))
    )
    return dict(sorted(Counter(reasons).items()))


def _is_usable(row: Measured) -> bool:
    return 0 < row.median_s < math.inf


def by_window(rows: Sequence[AnyRow]) -> list[tuple[int | None, list[AnyRow]]]:
    """Rows by requested window: beyond the largest size measured with it, the rows of the largest
    smaller window."""
    smallest = min(row.message_bytes for row in rows)
    requested = {row.window for row in rows if row.message_bytes == smallest}
    groups = []
    used = set()
    for window in requested:
        exact = [row for row in rows if row.window == window]
        largest = max(row.message_bytes for row in exact)
        shrunk = [
            row
            for row in rows
            if row.message_bytes > largest and (row.window or math.inf) < (window or 0)
        ]
        widest: dict[int, int] = {}
        for row in shrunk:
            widest[row.message_bytes] = max(row.window or 0, widest.get(row.message_bytes, 0))
        group = exact + [row for row in shrunk if row.window == widest[row.message_bytes]]
        groups.append((window, group))
        used |= {id(row) for row in group}
    rest = [row for row in rows if id(row) not in used]
    return groups + (by_window(rest) if rest else [])


def launches_of(row: Measured) -> Sequence[float]:
    """The median of each launch of a row, also of one that combines several runs."""
    if isinstance(row, Combined):
        return row.medians
    return launch_medians(row.median_s, row.visit_medians_s, row.visit_launches)


def _combined(rows: Sequence[Measured]) -> Time:
    """The time of all rows of a size."""
    medians = tuple(seconds for row in rows for seconds in launches_of(row))
    intervals = [interval for row in rows if (interval := interval_of(row)) is not None]
    if len(rows) == 1:
        in_visits = intervals[0].of in ("visits", "launches")
        return Time(intervals[0], medians, rows[0].run_id if in_visits else None)
    return Time(widest(statistics.median(medians), intervals), medians)


def key(row: Row, without: Iterable[str] = ()) -> tuple[Any, ...]:
    """A key that families share if they differ only in `without`."""
    return tuple(getattr(row, name) for name in FAMILY_VARIABLES if name not in without)


# ---------------------------------------------------------------- Hockney's model


@dataclass(frozen=True)
class Piece:
    """The line of sizes[first:last]: alpha in seconds, beta in seconds per byte, and the relative
    residual of each."""

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
    """One to three lines that cover the sizes [n >= 1, ascending] in order: as few as explain the
    times [n]."""
    chosen = [_fitted_line(sizes, times, 0, sizes.size)]
    if chosen[0].largest_residual <= GOOD or sizes.size < 2 * LEAST_POINTS:
        return chosen
    cuts = _cuts(sizes.size)
    lines = {  # of every stretch that may be a piece
        (first, last): _fitted_line(sizes, times, first, last)
        for first, last in itertools.combinations((0, *cuts, sizes.size), 2)
        if last - first >= LEAST_POINTS
    }
    for count in range(2, min(MOST_PIECES, sizes.size // LEAST_POINTS) + 1):
        splits = ([lines[ends] for ends in split] for split in _splits(sizes.size, cuts, count))
        candidate = min(splits, key=_squares)
        # the F statistic of nested models; a piece costs three parameters, its line and where it
        # begins
        before = _squares(chosen)
        after = max(_squares(candidate), NOTHING)
        extra = 3 * (count - len(chosen))
        freedom = max(sizes.size - 3 * count + 1, 1)
        statistic = (before - after) / extra / (after / freedom)
        if before >= CLEAR_FACTOR * after and statistic > CLEAR_F:
            chosen = candidate
    return chosen


def _squares(lines: Sequence[Piece]) -> float:
    return sum(line.squares for line in lines)


def _cuts(points: int) -> list[int]:
    """Where a piece may begin: anywhere, or at MOST_CUTS places of many points."""
    step = max(1, math.ceil(points / MOST_CUTS))
    return list(range(max(step, LEAST_POINTS), points, step))


def _splits(points: int, cuts: Sequence[int], count: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut 0..points at these places into `count` stretches of at least
    LEAST_POINTS."""
    for chosen in itertools.combinations(cuts, count - 1):
        stretches = list(itertools.pairwise((0, *chosen, points)))
        if all(last - first >= LEAST_POINTS for first, last in stretches):
            yield stretches


def _fitted_line(sizes: Sizes, times: Times, first: int, last: int) -> Piece:
    """The least squares of 1 - alpha / T - beta m / T; where one of the two would be negative, it
    is 0."""
    constant = 1 / times[first:last]
    linear = sizes[first:last] / times[first:last]
    scales = math.sqrt(constant @ constant), math.sqrt(linear @ linear)
    constant = constant / scales[0]
    linear = linear / scales[1]
    # the best alpha without beta, and beta without alpha
    alone = float(constant.sum()), float(linear.sum())
    alpha = beta = -1.0
    # what is orthogonal to alpha's column determines beta; np.linalg.lstsq takes ten times as long
    if last - first > 1:
        common = constant @ linear
        slope = linear - common * constant
        rest = 1 - alone[0] * constant
        beta = float(slope @ rest / (slope @ slope))
        alpha = float(alone[0] - common * beta)
    if alpha < 0 or beta < 0:
        alpha, beta = (alone[0], 0.0) if alone[0] >= alone[1] else (0.0, alone[1])
    misses = 1 - alpha * constant - beta * linear
    return Piece(first, last, alpha / scales[0], beta / scales[1], tuple(misses.tolist()))
