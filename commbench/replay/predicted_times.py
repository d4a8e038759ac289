"""Predict the communication of one data-parallel step, bucket after bucket, from measured
all_reduce times.

Between two measured sizes the time is interpolated on a straight line in log time over log size;
the interval also contains the straight line in time over size, because sizes far apart do not show
which one holds. Outside of the measured sizes the time comes from the Hockney fit of the nearest
piece, with a warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.analysis.fit import GOOD_FIT, Family, Times, answerable, families, key, pieces
from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.payload import dtype as dtype_of
from commbench.core.units import format_bytes
from commbench.results.columns import grouped

if TYPE_CHECKING:
    import pandas as pd

OPERATION = "all_reduce"
EXTRAPOLATED = "extrapolated"  # begins the warning of such a time
FARTHEST = 10.0  # times the largest measured size


@dataclass(frozen=True)
class TrainingStep:
    """The gradient buckets of one step: bytes -> number of buckets."""

    buckets: Mapping[int, int]

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    @property
    def total_bytes(self) -> int:
        return sum(size * count for size, count in self.buckets.items())


@dataclass(frozen=True)
class PredictedTime:
    """Seconds with their interval (NaN: none); a warning says why they are uncertain, or unknown
    (NaN)."""

    seconds: float = math.nan
    low: float = math.nan
    high: float = math.nan
    warning: str | None = None


def step_of(params: int, dtype: str, bucket_bytes: int) -> TrainingStep:
    """The gradients of a model in buckets of whole elements, the last one smaller; raises
    ConfigError.

    commbench.step_of(7_000_000_000, "bfloat16", bucket_bytes=25 * 2**20)
    """
    itemsize = dtype_of(dtype).itemsize
    if params < 1:
        raise ConfigError(
            f"params={params} must be at least 1; give the number of parameters, e.g. 7e9"
        )
    if bucket_bytes < itemsize:
        raise ConfigError(
            f"a bucket of {bucket_bytes} B is smaller than one {dtype}; give at least {itemsize} B"
        )
    elements = bucket_bytes // itemsize
    whole, rest = divmod(params, elements)
    counts = {elements * itemsize: whole, rest * itemsize: 1}
    return TrainingStep({size: count for size, count in counts.items() if size and count})


def predict(
    cases: pd.DataFrame, steps: Sequence[TrainingStep], dtype: str = "float32"
) -> pd.DataFrame:
    """One row per step and measured family of all_reduce; raises CommbenchError where nothing can
    be predicted.

        step = commbench.step_of(7_000_000_000, "bfloat16", bucket_bytes=25 * 2**20)
        commbench.predict(commbench.load("results"), [step], "bfloat16")[["backend", "step_s"]]

    Columns: the family's variables (dtype: the measured one), bucket_bytes (the largest), buckets,
    total_bytes, step_s with low_s and high_s, gb_per_s = total_bytes / step_s, runs (the most
    launches of a size), interval_level (the lowest of its sizes), warnings. A family of another
    dtype is used where the requested one was not measured; layouts of one rank are left out, and
    simulated times where others were measured. Times are null where the measured sizes do not
    determine them: beyond 10 times the largest size, or where the fit misses one by over 25 %.
    """
    import pandas as pd

    dtype_of(dtype)
    candidates = _candidates(cases, steps, dtype)
    rows = [
        {**family.variables, **_predicted(family, step, dtype)}
        for step in steps
        for family in candidates
    ]
    if all(math.isnan(row["step_s"]) for row in rows):
        reasons = dict.fromkeys(warning for row in rows for warning in row["warnings"])
        raise CommbenchError(
            f"no prediction: {'; '.join(reasons)}; measure {OPERATION} with sizes=octaves"
        )
    return pd.DataFrame(rows)


def _candidates(cases: pd.DataFrame, steps: Sequence[TrainingStep], dtype: str) -> list[Family]:
    """The best family of the operation for each set of variables without dtype."""
    measured = (
        family
        for family in families(answerable(cases))
        if family.variables["benchmark"] == OPERATION
    )
    groups = grouped(measured, lambda family: key(family.variables, without=("dtype",)))
    if not groups:
        raise CommbenchError(
            f"no usable row of {OPERATION} on two or more ranks among {len(cases)} cases; "
            f"measure with: commbench benchmark={OPERATION} sizes=octaves"
        )

    def preference(family: Family) -> tuple[Any, ...]:
        """Families that can answer, then the requested dtype, one of its size, and the one with
        most sizes."""
        own_dtype = str(family.variables["dtype"])
        known = set(family.sizes.tolist())
        answers = len(known) > 1 or all(set(step.buckets) <= known for step in steps)
        other_size = dtype_of(own_dtype).itemsize != dtype_of(dtype).itemsize
        return not answers, own_dtype != dtype, other_size, -len(known), own_dtype

    return [min(group, key=preference) for group in groups.values()]


def _predicted(family: Family, step: TrainingStep, dtype: str) -> dict[str, Any]:
    """The columns after the variables. All buckets of a size share one median, so its error does
    not average out."""
    times = {size: time_of(family, size) for size in step.buckets}
    seconds, low, high = (
        sum(getattr(times[size], name) * count for size, count in step.buckets.items())
        for name in ("seconds", "low", "high")
    )
    warnings = [time.warning for time in times.values() if time.warning]
    if family.variables["dtype"] != dtype:
        measured = f"{family.variables['dtype']} was measured, not {dtype}"
        warnings.append(
            f"{measured}: equal bytes are assumed to take equal time, but the summation may differ"
        )
    return {
        "bucket_bytes": max(step.buckets),
        "buckets": step.count,
        "total_bytes": step.total_bytes,
        "step_s": seconds,
        "low_s": low,
        "high_s": high,
        "gb_per_s": step.total_bytes / seconds / 1e9,
        "runs": family.launches,
        "interval_level": min(time.level for time in family.times),
        "warnings": tuple(warnings),
    }


def time_of(family: Family, size: int) -> PredictedTime:
    """The time of one operation of that many bytes."""
    sizes = family.sizes
    if size in sizes:
        time = family.at(size)
        return PredictedTime(time.median_s, time.low_s, time.high_s)
    if sizes.size < 2:
        return PredictedTime(warning=f"only {format_bytes(int(sizes[0]))} was measured")
    if not sizes[0] < size < sizes[-1]:
        return _beyond(family, size)

    def on_log_line(times: Times) -> float:
        return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(times))))

    low = min(on_log_line(family.low_s), float(np.interp(size, sizes, family.low_s)))
    high = max(on_log_line(family.high_s), float(np.interp(size, sizes, family.high_s)))
    return PredictedTime(on_log_line(family.median_s), low, high)


def _beyond(family: Family, size: int) -> PredictedTime:
    """Extrapolate the nearest piece of the fit; the interval adds its residual to the relative
    interval of the edge."""
    above = size > family.sizes[-1]
    edge = -1 if above else 0
    piece = pieces(family.sizes, family.median_s)[-1 if above else 0]
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
    seconds = piece.at(size)
    miss = piece.largest_residual
    low, high = (
        float(ends[edge] / family.median_s[edge]) for ends in (family.low_s, family.high_s)
    )
    far, name = (size / limit, "largest") if above else (limit / size, "smallest")
    text = (
        f"{EXTRAPOLATED}: {format_bytes(size)} is {far:.3g} x {'above' if above else 'below'} the"
        f" {name} measured size"
    )
    warning = f"{text}, {format_bytes(limit)}"
    return PredictedTime(
        seconds, max(seconds * low * (1 - miss), 0.0), seconds * high * (1 + miss), warning
    )
