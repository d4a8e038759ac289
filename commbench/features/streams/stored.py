"""What is stored of soaks: their intervals, and when streams were at full speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.analysis.families import AnyRow
from commbench.core.errors import CommbenchError
from commbench.results.load import CASE_KEY, Paths, read_case_rows, read_rows
from commbench.results.row import Row
from commbench.results.run_folder import mapping_or_empty

if TYPE_CHECKING:
    import pandas as pd

SOAK_CASE = ("label", "benchmark", "backend", "layout", "pair", "message_bytes")
MOVED = ("interval.repetitions", "interval.busy_s")  # counters
SOAK_INTERVAL = (*CASE_KEY, *SOAK_CASE, "at_s", "repetitions", "busy_s", "rate_gb_per_s")


def until_full_speed(rows: Iterable[AnyRow], records: Iterable[Mapping[str, Any]]) -> list[AnyRow]:
    """The rows of these runs with the end of the first interval at full speed in place of its
    start: tools print the time at which an interval ends."""
    steps_s = {str(record.get("run_id")): _interval_s(record) for record in records}
    return [
        row
        if row.full_speed_s is None
        else replace(row, full_speed_s=row.full_speed_s + steps_s.get(row.run_id, 0.0))
        for row in rows
    ]


def _interval_s(record: Mapping[str, Any]) -> float:
    """Of the soaks of a run; 0 where its run.json does not say it."""
    timing = mapping_or_empty(mapping_or_empty(record.get("config")).get("timing"))
    interval = timing.get("interval_s")
    return float(interval) if isinstance(interval, int | float) else 0.0


def soak_intervals(*paths: Paths) -> pd.DataFrame:
    """One row per interval of each soak below the folders; raises CommbenchError like load.

        commbench.soak_intervals("results").plot("at_s", "rate_gb_per_s")

    at_s since the start of the soak, repetitions that began in the interval (of a stream, shares
    of those that lie in it), busy_s spent in them,
    rate_gb_per_s (their bytes / busy_s, 10^9 B/s).
    """
    return intervals_of_soaks(read_case_rows(paths), read_rows(paths, "counters"))


def intervals_of_soaks(rows: Iterable[Row], counters: pd.DataFrame) -> pd.DataFrame:
    """The intervals of these soaks; the columns are those of soak_intervals."""
    import pandas as pd

    names = [*CASE_KEY, *SOAK_CASE, "operations_per_sample"]
    cases = pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)
    wide = intervals_of(counters).reindex(columns=[*CASE_KEY, "t_ns", "repetitions", "busy_s"])
    soaks = wide.merge(cases, on=CASE_KEY)
    soaks["at_s"] = (soaks["t_ns"] - soaks.groupby(CASE_KEY)["t_ns"].transform("min")) * 1e-9
    bytes_each = soaks["operations_per_sample"] * soaks["message_bytes"]
    soaks["rate_gb_per_s"] = (soaks["repetitions"] * bytes_each / soaks["busy_s"] * 1e-9).astype(
        "float64"
    )
    return soaks[list(SOAK_INTERVAL)].sort_values([*CASE_KEY, "at_s"])


def stored_intervals(cases: Iterable[Row], folders: Sequence[Path]) -> pd.DataFrame | None:
    """The intervals of the soaks among the cases, of the folders that can be read; None without
    any."""
    import pandas as pd
    import pyarrow.compute as pc

    soaks = [row for row in cases if row.is_soak]
    counters = []
    for folder in folders if soaks else ():
        with suppress(CommbenchError):
            counters.append(read_rows([folder], "counters", where=pc.field("name").isin(MOVED)))
    known = [each for each in counters if not each.empty]
    return intervals_of_soaks(soaks, pd.concat(known)) if known else None


def intervals_of(counters: pd.DataFrame) -> pd.DataFrame:
    """A row per case and interval of a soak (CASE_KEY, t_ns), with its counters as columns."""
    counters = counters[counters["name"].str.startswith("interval.")]
    named = counters.assign(name=counters["name"].str.removeprefix("interval."))
    return named.pivot_table(
        index=[*CASE_KEY, "t_ns"], columns="name", values="value"
    ).reset_index()
