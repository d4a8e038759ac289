"""What is known of the soaks of a report, each read once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from commbench.analysis.combined import one_case
from commbench.analysis.combined_row import Combined
from commbench.report.summary import Summary
from commbench.results.columns import grouped
from commbench.results.row import Row

from .ramp import RAMP_COLUMNS
from .stored import stored_intervals, until_full_speed

if TYPE_CHECKING:
    import pandas as pd


def soaks_of(summary: Summary) -> list[Row]:
    """Those that have a number."""
    return [row for row in summary.results.rows if row.status == "ok" and row.is_soak]


def combined_soaks(summary: Summary) -> Iterator[Combined]:
    """Each over all of its launches, those of many pairs left out."""
    launches = grouped(soaks_of(summary), one_case)
    for row in summary.soaks.rows:
        yield replace(row, **_medians(launches[one_case(row)]))


def _medians(launches: Sequence[Row]) -> dict[str, Any]:
    """Of the columns that only soaks of streams have, without those that no launch has."""
    columns = {name: [getattr(row, name) for row in launches] for name in RAMP_COLUMNS}
    known = {
        name: [value for value in values if value is not None] for name, values in columns.items()
    }
    return {name: median(values) for name, values in known.items() if values}


@functools.lru_cache(maxsize=1)
def read_intervals(summary: Summary) -> pd.DataFrame | None:
    """Of all of them; None where they can't be read."""
    folders = summary.results.folders
    soaks = soaks_of(summary)
    stored = {folders[row.run_id] for row in soaks if row.run_id in folders}
    return stored_intervals(soaks, sorted(stored))


def full_speed_s(summary: Summary) -> list[float]:
    """Of each stream: until the end of its first interval at full speed."""
    rows = until_full_speed(summary.results.rows, summary.results.records)
    return [row.full_speed_s for row in rows if row.full_speed_s is not None]
