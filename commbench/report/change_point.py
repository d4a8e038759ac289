"""Since when a case is slower or faster: the change point of the medians of its runs, in order of
time.

The point splits the series so that the sum of the absolute distances of the logarithms to the
median of their own part is least (least absolute deviations, Bai 1995). A single disturbed run
moves no median, so it is not taken for the beginning of a change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commbench.measure.statistics import Series

MOST_SEARCHED = 500  # runs; before them nothing is looked for


@dataclass(frozen=True)
class ChangePoint:
    """`first` is the index of the first run after the change; `ratio` is the median after it over
    the median before."""

    first: int
    ratio: float


def last_change(medians: Series, slower: bool) -> ChangePoint:
    """The change point of a series of at least two medians in seconds, oldest first, of which the
    last is known to be slower, or faster, than those before."""
    skipped = max(0, medians.size - MOST_SEARCHED)
    logs = np.log(medians[skipped:] if slower else 1 / medians[skipped:])
    steps = [_step(logs, first) for first in range(1, logs.size)]
    costs = [
        _distance(logs[:first]) + _distance(logs[first:]) if step > 0 else math.inf
        for first, step in enumerate(steps, start=1)
    ]
    first = 1 + int(np.argmin(costs))
    step = steps[first - 1]
    return ChangePoint(skipped + first, math.exp(step if slower else -step))


def _step(logs: Series, first: int) -> float:
    return float(np.median(logs[first:]) - np.median(logs[:first]))


def _distance(logs: Series) -> float:
    return float(np.abs(logs - np.median(logs)).sum())
