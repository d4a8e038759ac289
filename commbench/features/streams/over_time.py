"""The figures of soaks and streams on the page of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from commbench.core.errors import CommbenchError
from commbench.report.plots import OVER_TIME
from commbench.report.quantities import is_stream_soak
from commbench.report.reporting import curves_beside
from commbench.report.section import Figure, Section
from commbench.report.sections import row_titles
from commbench.report.summary import Summary
from commbench.results.load import CASE_KEY, frame_of, run_tables
from commbench.results.row import Row

from .derived import full_speed_s, read_intervals, soaks_of
from .figures import full_speed, soak, stream, times_of
from .rates import repetition_bytes
from .stored import intervals_of

if TYPE_CHECKING:
    import pandas as pd

MOST_SOAKS = 12
MOST_POINTS = 600


def over_time(summary: Summary) -> Iterator[Section]:
    """The time lines of the soaks whose intervals can be read, and when streams were at full
    speed."""
    soaks = [row for row in soaks_of(summary) if row.run_id in summary.results.folders]
    others = len(soaks) - MOST_SOAKS
    note = f"time lines are drawn for {MOST_SOAKS} soaks; {others} more have none"
    intervals = read_intervals(summary)
    known = () if intervals is None else intervals.groupby(CASE_KEY).groups
    shown = [row for row in soaks[:MOST_SOAKS] if (row.run_id, row.case_id) in known]
    if shown:
        yield Section(
            "Over time",
            figures=partial(_time_lines, summary, shown),
            notes=[note] if others > 0 else [],
            is_on_terminal=False,
        )
    reached_s = full_speed_s(summary)
    if len(reached_s) > 1:
        title = "Time to full speed of fresh connections"
        yield Section(title, figures=partial(full_speed, reached_s), is_on_terminal=False)


def _time_lines(summary: Summary, soaks: Sequence[Row]) -> list[Figure]:
    titles = row_titles(summary, [(row.run_id, row.case_id) for row in soaks])
    figures = []
    for row, title in zip(soaks, titles.values(), strict=True):
        with suppress(CommbenchError):
            line = _time_line(summary, row)
            beside = curves_beside(summary, [row])
            known = [curve for curve in beside if curve.column == OVER_TIME]
            if is_stream_soak(row):
                figures += stream(title, line, repetition_bytes(row), known)
            else:
                of_times = times_of(known, row.message_bytes)
                figures += soak(f"{title}: median and range of each interval", line, of_times)
    return figures


def _time_line(summary: Summary, row: Row) -> pd.DataFrame:
    """At most MOST_POINTS rows with at_s (since the start), min_s, median_s and max_s, of a stream
    repetitions and busy_s."""
    wanted = [("case_id", "==", row.case_id)]
    counters = run_tables(summary.results.folders[row.run_id], "counters", None, wanted)
    table = intervals_of(frame_of(counters, "counters")).sort_values("t_ns")
    timed = table.assign(at_s=(table["t_ns"] - table["t_ns"].iloc[0]) * 1e-9)
    bins = timed.groupby(np.arange(len(table)) // max(1, -(-len(table) // MOST_POINTS)))
    return bins.agg(_shown_columns(timed))


def _shown_columns(timed: pd.DataFrame) -> dict[str, str]:
    """How the columns of several intervals become one: times, or repetitions of a stream."""
    if "median_s" not in timed:
        return {"at_s": "min", "repetitions": "sum", "busy_s": "sum"}
    return {"at_s": "min", "min_s": "min", "median_s": "median", "max_s": "max"}
