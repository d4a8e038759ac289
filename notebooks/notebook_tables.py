"""The tables of the notebooks: what documents published beside our numbers, and when soaks reached
their full speed."""

from __future__ import annotations

import math

import pandas as pd

from commbench.analysis.cold_start import CASE_KEY, SOAK_CASE
from commbench.analysis.reference import UNITS, Point, Reference, of_experiment, references
from commbench.core.errors import ConfigError
from commbench.stats.ramp import ramp_of

POINT = ("setting", "message_bytes", "column")  # identifies a published value of an experiment
PUBLISHED_COLUMNS = ("experiment", *POINT, "value", "unit", "source", "place")
FULL_SPEED = ("steady_gb_per_s", "full_speed_s", "least_gb_per_s")


def published(experiment: str) -> pd.DataFrame:
    """One row per value that the document behind an experiment published; a range has two.

    setting (the document's words), message_bytes (null: not given), column (ours), value and unit
    of that column, source with its date, place in it. Raises ConfigError for an experiment without
    published values.
    """
    chosen = of_experiment(experiment)
    if not chosen:
        known = sorted({each.experiment for each in references() if each.experiment})
        raise ConfigError(f"{experiment} has no published values; it has: {', '.join(known)}")
    rows = [
        (
            experiment,
            setting,
            point.message_bytes,
            reference.column,
            value * UNITS[reference.unit],
            unit_of_column(reference.column),
            f"{reference.source}, {reference.date}, {reference.machine}",
            reference.place,
        )
        for reference in chosen
        for point in reference.points
        for setting, value in named_values(reference, point)
    ]
    return pd.DataFrame(rows, columns=list(PUBLISHED_COLUMNS)).astype({"message_bytes": "Int64"})


def named_values(reference: Reference, point: Point) -> list[tuple[str, float]]:
    """Its setting, `at 100 ms` where it has a time, and its value; both ends of a range."""
    setting = reference.setting
    if point.at_s is not None:
        return [(f"{setting} {1e3 * point.at_s:.0f} ms", point.value)]
    if point.low < point.high and math.isfinite(point.high - point.low):
        return [(f"{setting}, low", point.low), (f"{setting}, high", point.high)]
    return [(setting, point.value)]


def unit_of_column(column: str) -> str:
    """GB/s, s, 1/s, or nothing for a ratio."""
    units = {"gb_per_s": "GB/s", "per_s": "1/s", "s": "s", "bytes": "B"}
    return next((unit for end, unit in units.items() if column.endswith(f"_{end}")), "")


def beside(values: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """One row per published value: setting, message_bytes, column, unit, published, ours, ratio
    (ours / published).

    `ours` has the columns setting, message_bytes, column and value, one row per measured setting;
    where a row is missing, ours is null. Raises ConfigError for a point that occurs twice.
    """
    doubled = ours[ours.duplicated(list(POINT))]
    if len(doubled):
        raise ConfigError(
            f"ours has {tuple(doubled.iloc[0][list(POINT)])} twice; take one value of each"
        )
    ours = ours[[*POINT, "value"]].astype({"message_bytes": "Int64"})
    joined = values.merge(ours, on=list(POINT), how="left", suffixes=("", "_ours"))
    joined = joined.rename(columns={"value": "published", "value_ours": "ours"})
    joined["ratio"] = joined["ours"].astype("float64") / joined["published"]
    return joined[[*POINT, "unit", "published", "ours", "ratio"]]


def full_speed(intervals: pd.DataFrame) -> pd.DataFrame:
    """One row per soak of soak_intervals, as stats.ramp says it.

    steady_gb_per_s: the rate at the end, the median of the last fifth of the intervals;
    full_speed_s: when 95 % of it was reached, null where that may not have been before;
    least_gb_per_s: the slowest interval after that.
    """
    rows = []
    for _, soak in intervals.groupby(list(CASE_KEY), sort=False):
        at_s, rates, busy_s = (
            soak[name].to_numpy(dtype=float) for name in ("at_s", "rate_gb_per_s", "busy_s")
        )
        ramp = ramp_of(at_s, rates * busy_s, busy_s)
        if ramp is not None:
            head = soak.iloc[0][[*CASE_KEY, *SOAK_CASE]].to_dict()
            numbers = dict(zip(FULL_SPEED, (ramp.end, ramp.full_speed_s, ramp.least), strict=True))
            rows.append(head | numbers)
    frame = pd.DataFrame(rows, columns=[*CASE_KEY, *SOAK_CASE, *FULL_SPEED])
    return frame.astype(dict.fromkeys(FULL_SPEED, "float64"))
