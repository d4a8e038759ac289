"""Soaks and streams over time, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from commbench.report.figures import BAND_OPACITY, PALETTE, seconds_text
from commbench.report.plots import (
    TIME,
    WIDE_INCHES,
    KnownCurve,
    draw_known,
    drawn,
    linear_axis,
    log_axis,
)
from commbench.report.section import Figure

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

FULL_SPEED_BIN_S = 0.1
LARGEST_STEP = 3.0  # in usual steps; a longer one is a gap in the line


def soak(title: str, line: pd.DataFrame, known: Sequence[KnownCurve] = ()) -> list[Figure]:
    """The median of each interval over time, with a band from minimum to maximum; a gap where
    nothing was measured. `known`: published curves."""
    columns = line[["at_s", "min_s", "median_s", "max_s"]].to_numpy().T
    with drawn(title, WIDE_INCHES) as (axes, made):
        at, low, median, high = with_gaps(columns, LARGEST_STEP)
        axes.fill_between(at, low, high, color=PALETTE[0], alpha=BAND_OPACITY, linewidth=0)
        axes.plot(at, median, color=PALETTE[0], marker=".", markersize=4)
        every = [*columns[1], *columns[3]]
        every += draw_known(axes, known)
        log_axis(axes.yaxis, every, seconds_text, TIME)
        axes.set_xlabel("time since the start (s)")
    return made


def stream(
    title: str, line: pd.DataFrame, repetition_bytes: int, known: Sequence[KnownCurve] = ()
) -> list[Figure]:
    """The rate of each interval at its end, beside published curves in GB/s."""
    rates = line["repetitions"] * repetition_bytes / line["busy_s"] * 8e-9
    with drawn(title, WIDE_INCHES) as (axes, made):
        at_s, gbit = with_gaps(np.array([_interval_ends_s(line), rates]), LARGEST_STEP)
        axes.plot(at_s, gbit, color=PALETTE[0], marker=".", markersize=4)
        in_bits = [each._replace(values=tuple(8 * rate for rate in each.values)) for each in known]
        most = max([float(rates.max()), *draw_known(axes, in_bits)])
        linear_axis(axes.yaxis, most, lambda rate: f"{rate:g}", "rate (Gb/s)")
        axes.set_xlabel("time since the start (s)")
    return made


def _interval_ends_s(line: pd.DataFrame) -> NDArray[np.float64]:
    """As tools print them; the last interval ends with its last repetition."""
    begins_s, busy_s = line[["at_s", "busy_s"]].to_numpy(dtype=float).T
    step_s = np.median(np.diff(begins_s)) if len(begins_s) > 1 else busy_s[0]
    ends_s: NDArray[np.float64] = begins_s + step_s
    ends_s[-1] = begins_s[-1] + min(step_s, busy_s[-1])
    return ends_s


def full_speed(seconds: Sequence[float]) -> list[Figure]:
    """A histogram of the time from the start of a stream to the end of its first interval with
    95 % of the rate at its end."""
    title = "to the end of the first interval with 95 % of the rate at the end"
    with drawn(title) as (axes, made):
        # around whole intervals of a time line
        edges = np.arange(-0.5, max(seconds) / FULL_SPEED_BIN_S + 1.5) * FULL_SPEED_BIN_S
        counts, _, _ = axes.hist(seconds, bins=edges.tolist(), color=PALETTE[2])
        linear_axis(
            axes.yaxis, float(np.max(counts)), lambda count: f"{count:g}", "streams", whole=True
        )
        axes.set_xlabel("time (s)")
    return made


def times_of(rates: Iterable[KnownCurve], message_bytes: int) -> list[KnownCurve]:
    """The same curves as seconds of one message."""
    return [
        each._replace(values=tuple(message_bytes * 1e-9 / rate for rate in each.values))
        for each in rates
    ]


def with_gaps(columns: NDArray[np.float64], longest_step: float) -> NDArray[np.float64]:
    """Columns [k, n] over ascending values in the first, with NaN in every gap of over
    `longest_step` usual steps."""
    steps = np.diff(columns[0])
    gaps = (
        np.flatnonzero(steps > longest_step * np.median(steps)) + 1
        if steps.size
        else np.zeros(0, dtype=np.int64)
    )
    return np.insert(columns, gaps, np.nan, axis=1)
