"""How long cases took from their first call to their steady rate, on the page of a report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from commbench.core.errors import CommbenchError
from commbench.report.distributions import chosen_runs
from commbench.report.figures import PALETTE, seconds_text
from commbench.report.plots import drawn, linear_axis, log_axis
from commbench.report.reporting import Reporting
from commbench.report.section import Figure, Section
from commbench.report.summary import Results, Summary

from .cold_start import cold_start

BINS = 24


def costs(summary: Summary) -> Iterator[Section]:
    """One of each backend. The page has none of a backend that was at its steady rate at once."""
    read = functools.cache(partial(ramps_s, summary.results))
    for backend in sorted({row.backend for row in summary.results.rows}):
        yield Section(
            "From the first call to the steady rate",
            figures=partial(_figures, read, backend),
            is_folded=True,
            is_on_terminal=False,
        )


def ramps_s(results: Results) -> Mapping[str, Sequence[float]]:
    """Backend -> seconds to 95 % of the steady rate of each case that took some. Samples that can't
    be read are left out: the distributions of the same runs say so."""
    seconds: dict[str, list[float]] = {}
    for run_id in chosen_runs(results)[0]:
        with suppress(CommbenchError, KeyError, ValueError):
            cold = cold_start(results.folders[run_id])
            for backend, ramp_s in cold.loc[cold["ramp_s"] > 0, ["backend", "ramp_s"]].to_numpy():
                seconds.setdefault(backend, []).append(ramp_s)
    return seconds


def _figures(read: Callable[[], Mapping[str, Sequence[float]]], backend: str) -> list[Figure]:
    seconds = read().get(backend)
    return histogram(backend, seconds) if seconds else []


def histogram(backend: str, seconds: Sequence[float]) -> list[Figure]:
    """Of how many cases took how long."""
    with drawn(f"{backend}: from the first call to 95 % of the steady rate") as (axes, made):
        ends = log_axis(axes.xaxis, seconds, seconds_text, "time")
        counts, _, _ = axes.hist(seconds, bins=np.geomspace(*ends, BINS).tolist(), color=PALETTE[2])
        most = float(np.max(counts))
        linear_axis(axes.yaxis, most, lambda count: f"{count:g}", "cases", whole=True)
    return made


REPORTING = Reporting(sections={"costs": costs})
