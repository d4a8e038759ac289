"""How a rate rises: what it is at the end, what it was in the first second, and when it had
reached full speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commbench.stats.thresholds import FULL_SPEED_SHARE

END_SHARE = 0.2  # of the intervals
LEAST_END = 2  # of them
FIRST_S = 1.0
ROUNDED_S = 1e-6  # more than the error of sums of steps
SHORTEST_S = 1.5 * FIRST_S  # of what has a first second and an end
GB = 1e9


@dataclass(frozen=True)
class Ramp:
    """Rates in the unit that they were given in, per second.

    mean: all that moved over the whole time, as iperf and tcpbench count. end: the median of the
    last fifth of the intervals. first_second: of those that end within it; None where there are
    none, and below 1.5 s. full_speed_s: the start of the first interval that, like the one after
    it, has 95 % of the end; None where that is within the last fifth: the rate may still be rising.
    least: the slowest interval from then on.
    """

    mean: float
    end: float
    first_second: float | None
    full_speed_s: float | None
    least: float | None


def _gb_per_s(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / GB


# the columns of the soak of a stream: their values from its ramp in B/s
RAMP_COLUMNS: Mapping[str, Callable[[Ramp], float | None]] = {
    "end_gb_per_s": lambda ramp: _gb_per_s(ramp.end),
    "first_second_gb_per_s": lambda ramp: _gb_per_s(ramp.first_second),
    "full_speed_s": lambda ramp: ramp.full_speed_s,
    "least_gb_per_s": lambda ramp: _gb_per_s(ramp.least),
}


def is_whole(busy_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which intervals are long enough to be judged: the last one is cut off by the end."""
    return busy_s >= np.median(busy_s) / 2


def ramp_of(
    begins_s: NDArray[np.float64], moved: NDArray[np.float64], busy_s: NDArray[np.float64]
) -> Ramp | None:
    """Of intervals [n] in which so much moved; None without any."""
    if not moved.size:
        return None
    mean = float(moved.sum() / (begins_s[-1] + busy_s[-1] - begins_s[0]))
    whole = is_whole(busy_s)
    begins_s = begins_s[whole]
    moved = moved[whole]
    busy_s = busy_s[whole]
    rates = moved / busy_s
    last = max(0, len(rates) - max(LEAST_END, round(END_SHARE * len(rates))))
    end = float(np.median(rates[last:]))
    step_s = np.diff(begins_s).min(initial=busy_s[0] if len(busy_s) == 1 else np.inf)
    in_first = begins_s + step_s <= FIRST_S + ROUNDED_S
    has_first = in_first.any() and begins_s[-1] + busy_s[-1] >= SHORTEST_S
    first = float(moved[in_first].sum() / busy_s[in_first].sum()) if has_first else None
    fast = rates >= FULL_SPEED_SHARE * end
    reached = np.flatnonzero((fast[:-1] & fast[1:])[: last + 1])
    if not reached.size:
        return Ramp(mean, end, first, None, None)
    at = int(reached[0])
    full_speed_s = float(begins_s[at] - begins_s[0])
    return Ramp(mean, end, first, full_speed_s, float(rates[at:].min()))
