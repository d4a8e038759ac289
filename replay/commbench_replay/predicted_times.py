"""The time of an operation of any size, from those of the sizes that were measured.

Between two measured sizes the time is interpolated on a straight line in log time over log size;
the interval also contains the straight line in time over size, because sizes far apart do not show
which one holds. Outside of the measured sizes the time comes from the Hockney fit of the nearest
piece, with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from commbench.analysis.families import Family, Times
from commbench.core.units import about_bytes, format_bytes
from commbench.features.hockney.model import GOOD_FIT, pieces
from commbench.stats.interval import Interval

FARTHEST = 10.0  # times the largest measured size


@dataclass(frozen=True)
class PredictedTime:
    """`seconds` is None where the time is not known. `source`: the sizes that it is from;
    `warning`: why it is uncertain, or not known."""

    seconds: Interval | None = None
    source: str = ""
    warning: str = ""


def time_of(family: Family, size: int) -> PredictedTime:
    """The time of one operation of that many bytes."""
    sizes = family.sizes
    if size in sizes:
        return PredictedTime(family.at(size).median, "measured")
    if sizes.size < 2:
        return PredictedTime(warning=f"only {format_bytes(int(sizes[0]))} was measured")
    if not sizes[0] < size < sizes[-1]:
        return _beyond(family, size)

    def on_log_line(times: Times) -> float:
        return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(times))))

    low = min(on_log_line(family.low_s), float(np.interp(size, sizes, family.low_s)))
    high = max(on_log_line(family.high_s), float(np.interp(size, sizes, family.high_s)))
    place = int(np.searchsorted(sizes, size))
    below, above = (about_bytes(int(end)) for end in sizes[place - 1 : place + 1])
    return PredictedTime(
        Interval(on_log_line(family.median_s), low, high), f"from {below} and {above}"
    )


def size_errors(family: Family) -> list[float]:
    """Relative errors of the sizes between two others, each predicted from all but itself."""
    errors = []
    for place in range(1, len(family.sizes) - 1):
        others = [index for index in range(len(family.sizes)) if index != place]
        times = tuple(family.times[index] for index in others)
        without = replace(family, sizes=family.sizes[others], times=times)
        predicted = time_of(without, int(family.sizes[place])).seconds
        if predicted is not None:
            errors.append(abs(predicted.value / float(family.median_s[place]) - 1))
    return errors


def _beyond(family: Family, size: int) -> PredictedTime:
    """Extrapolate the nearest piece of the fit; the interval adds its residual to the relative
    interval of the edge."""
    above = size > family.sizes[-1]
    edge = -1 if above else 0
    piece = pieces(family.sizes, family.median_s)[edge]
    limit = int(family.sizes[edge])
    unknown = None
    if size > FARTHEST * family.sizes[-1]:
        unknown = f"is over {FARTHEST:g} times the largest measured size, {format_bytes(limit)}"
    elif piece.largest_residual > GOOD_FIT:
        miss_text = f"{100 * piece.largest_residual:.0f} %"
        unknown = f"is outside of the measured sizes, and the fit misses one of them by {miss_text}"
    elif above and piece.beta_s_per_byte == 0:
        unknown = "is above all measured sizes, and the measured times do not grow with the size"
    if unknown:
        return PredictedTime(warning=f"{format_bytes(size)} {unknown}")
    value = piece.at(size)
    miss = piece.largest_residual
    low, high = (
        float(ends[edge] / family.median_s[edge]) for ends in (family.low_s, family.high_s)
    )
    far, name = (size / limit, "largest") if above else (limit / size, "smallest")
    return PredictedTime(
        Interval(value, max(value * low * (1 - miss), 0.0), value * high * (1 + miss)),
        "extrapolated",
        f"extrapolated: {format_bytes(size)} is {far:.3g} x {'above' if above else 'below'} the"
        f" {name} measured size, {format_bytes(limit)}",
    )
