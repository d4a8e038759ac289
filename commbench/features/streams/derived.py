"""What is known of the soaks of a report, each read once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from commbench.report.summary import Summary
from commbench.results.row import Row

from .stored import stored_intervals, until_full_speed

if TYPE_CHECKING:
    import pandas as pd


def soaks_of(summary: Summary) -> list[Row]:
    """Those that have a number."""
    return [row for row in summary.results.rows if row.status == "ok" and row.timing == "soak"]


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
