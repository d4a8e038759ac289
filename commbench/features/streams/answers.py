"""What soaks say, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from commbench.analysis.case_names import case_names, without_shared
from commbench.analysis.combined_row import Combined
from commbench.analysis.pairs.matrix import Matrix
from commbench.core.units import format_number, format_seconds
from commbench.report.quantities import has_bandwidth, is_stream_soak
from commbench.report.summary import MOST_SENTENCES, Summary
from commbench.results.intervals import interval_of
from commbench.results.load import CASE_KEY

from .derived import combined_soaks, read_intervals, soaks_of
from .rates import bit_unit, slow_start_text, stream_sentences
from .stability import Stability, stability_of
from .stability_text import stability_sentences
from .stored import until_full_speed

if TYPE_CHECKING:
    import pandas as pd


def answers(summary: Summary) -> Iterator[str]:
    """How stable the soaks were; then each, those of many pairs left out."""
    yield from _stability(summary)
    rows = until_full_speed(combined_soaks(summary), summary.results.records)
    yield from soak_sentences(rows)[:MOST_SENTENCES]


def first_seconds(matrix: Matrix) -> Iterator[str]:
    """Which of its streams began slowly."""
    streams = list(filter(is_stream_soak, matrix.rows.values()))
    if text := slow_start_text(streams, bit_unit(streams)):
        yield text


def _stability(summary: Summary) -> Iterator[str]:
    """Which soaks were stable, and when the others dipped."""
    intervals = read_intervals(summary)
    found = {} if intervals is None else stabilities(intervals)
    rows = {(row.run_id, row.case_id): row for row in without_shared(soaks_of(summary))}
    names = case_names([rows[key] for key in found])
    return stability_sentences(names, list(found.values()))


def stabilities(intervals: pd.DataFrame) -> dict[tuple[str, str], Stability]:
    """CASE_KEY of each soak that has enough of these intervals -> how stable it was."""
    found = {}
    for (run_id, case_id), soak in intervals.groupby(CASE_KEY, sort=False):
        columns = (soak[name].to_numpy() for name in ("at_s", "repetitions", "busy_s"))
        stability = stability_of(*columns)
        if stability is not None:
            found[str(run_id), str(case_id)] = stability
    return found


def soak_sentences(rows: Sequence[Combined]) -> list[str]:
    """A sentence for each soak; of a latency with the round trip, as other tools count it."""
    lines = stream_sentences(list(filter(is_stream_soak, rows)))
    for row, name in zip(rows, case_names(rows), strict=True):
        if is_stream_soak(row):
            continue
        where = f"{row.backend} {row.engine}"
        rate = f", {format_number(row.algbw_gb_per_s)} GB/s" if has_bandwidth(row) else ""
        slow = f"; 99 % take at most {format_seconds(row.p99_s)}" if row.p99_s else ""
        interval = interval_of(row)
        median = "-" if interval is None else interval.text(format_seconds)
        trip = ""
        if row.is_half_round_trip:
            trip = f" (round trip {format_seconds(2 * row.median_s)})"
        runs = f"; median of {row.runs} launches" if row.runs > 1 else ""
        lines.append(f"Soak of {name}, {where}: median {median}{trip}{rate}{slow}{runs}.")
    return lines
