"""Soaks: the rate in each interval, and how long a fresh connection took to its full speed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .cold_start import STEADY_SHARE
from .load import load

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "interval."
CASE = ("run_id", "case_id")
TOLD = ("label", "benchmark", "backend", "layout", "pair", "message_bytes")
LINE = (*CASE, *TOLD, "at_s", "repetitions", "busy_s", "rate_gb_per_s")
SPEED = (*CASE, *TOLD, "steady_gb_per_s", "full_speed_s", "least_gb_per_s")


def time_line(*paths: str | Path) -> pd.DataFrame:
    """A row an interval of each soak below the folders: at_s since its start, repetitions that began in it, busy_s
    spent in them, rate_gb_per_s (their bytes / busy_s, 10^9 B/s). Raises CommbenchError like load.
    """
    counters = load(*paths, table="counters")
    counters = counters[counters["name"].str.startswith(PREFIX)]
    table = counters.assign(name=counters["name"].str.removeprefix(PREFIX))
    wide = table.pivot_table(index=[*CASE, "t_ns"], columns="name", values="value").reset_index()
    wide = wide.reindex(columns=[*CASE, "t_ns", "repetitions", "busy_s"])
    cases = load(*paths).drop(columns="repetitions")
    found = wide.merge(cases, on=list(CASE))
    found["at_s"] = (found["t_ns"] - found.groupby(list(CASE))["t_ns"].transform("min")) * 1e-9
    bytes_each = found["operations_per_sample"] * found["message_bytes"]
    found["rate_gb_per_s"] = (found["repetitions"] * bytes_each / found["busy_s"] * 1e-9).astype("float64")
    return found[list(LINE)].sort_values([*CASE, "at_s"])


def full_speed(line: pd.DataFrame) -> pd.DataFrame:
    """A row a soak of time_line: steady_gb_per_s (the median interval), full_speed_s (the start of the first interval
    with at least 95 % of it), least_gb_per_s (the slowest interval after that one).
    """
    import pandas as pd

    rows = []
    for _, soak in line.groupby(list(CASE), sort=False):
        steady = float(soak["rate_gb_per_s"].median())
        fast = soak[soak["rate_gb_per_s"] >= STEADY_SHARE * steady]
        begun = float(fast["at_s"].iloc[0])
        least = float(soak.loc[soak["at_s"] >= begun, "rate_gb_per_s"].min())
        head = soak.iloc[0][[*CASE, *TOLD]].to_dict()
        rows.append({**head, "steady_gb_per_s": steady, "full_speed_s": begun, "least_gb_per_s": least})
    return pd.DataFrame(rows, columns=list(SPEED))
