"""Cases as curves over message size."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from commbench.core.units import natural_key
from commbench.core.variables import MODEL_ENGINE
from commbench.results.columns import grouped
from commbench.results.intervals import interval_of
from commbench.results.row import Measured, Row
from commbench.stats.difference import Time
from commbench.stats.interval import widest

from .case_names import FAMILY_VARIABLES

AnyRow = TypeVar("AnyRow", bound=Row)
Sizes = NDArray[np.int64]
Times = NDArray[np.float64]

WHOSE = ("library", "label", "hosts")  # part of a case's name only where they differ


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
        widest = dict[int, int]()
        for row in shrunk:
            widest[row.message_bytes] = max(row.window or 0, widest.get(row.message_bytes, 0))
        group = exact + [row for row in shrunk if row.window == widest[row.message_bytes]]
        groups.append((window, group))
        used |= {id(row) for row in group}
    rest = [row for row in rows if id(row) not in used]
    return groups + (by_window(rest) if rest else [])


def _combined(rows: Sequence[Measured]) -> Time:
    """The time of all rows of a size."""
    medians = tuple(seconds for row in rows for seconds in row.launch_medians)
    intervals = [interval for row in rows if (interval := interval_of(row)) is not None]
    if len(rows) == 1:
        in_visits = intervals[0].of in ("visits", "launches")
        return Time(intervals[0], medians, rows[0].run_id if in_visits else None)
    return Time(widest(statistics.median(medians), intervals), medians)


def key(row: Row, without: Iterable[str] = ()) -> tuple[Any, ...]:
    """A key that families share if they differ only in `without`."""
    return tuple(getattr(row, name) for name in FAMILY_VARIABLES if name not in without)
