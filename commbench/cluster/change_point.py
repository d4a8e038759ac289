"""Whether the last launches of a case are slower or faster than those before, and since when a case
is: the change point of its medians, in order of time.

A change that is smaller than launches vary by shows in many of them together. So the last 3, 4, 6
... launches are compared with all before. They differ if their mean lies outside of the prediction
interval for so many future launches (prediction.py), and if they also do by their ranks (Mann and
Whitney), which a few disturbed launches hardly move. The risk of both is that of all these
comparisons, divided by their number.

The change point splits the series so that the sum of the absolute distances of the logarithms to
the median of their own part is least (least absolute deviations, Bai 1995). A single disturbed run
moves no median, so it is not taken for the beginning of a change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commbench.cluster.baseline_store import HealthyLaunch
from commbench.stats.difference import mann_whitney
from commbench.stats.series import Series

from .prediction import predictions

MOST_SEARCHED = 500  # runs; before them nothing is looked for
# Launches since a change; steps of a third to a half lose little, and are few comparisons.
SPANS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
LEAST_BEFORE = 5  # launches


@dataclass(frozen=True)
class LastingChange:
    """The last `launches` launches are slower, or faster, than those before. `middle_s` is halfway
    between the medians of both."""

    slower: bool
    launches: int
    middle_s: float

    def is_shown_by(self, medians_s: Sequence[float]) -> bool:
        """Whether the median of these times is on the changed side of the middle."""
        return (float(np.median(medians_s)) > self.middle_s) == self.slower


def lasting_change(
    launches: Sequence[HealthyLaunch], risk: float, delta: float
) -> LastingChange | None:
    """What the last launches of a series, oldest first, show together; None if nothing.

    `risk` is the probability that launches without a change show one; `delta`: the least change
    that matters, 0.02 is 2 %.
    """
    searched = launches[-MOST_SEARCHED:]
    medians = np.array([launch.median_s for launch in searched])
    for span in SPANS:
        if len(searched) < span + LEAST_BEFORE:
            break
        before = medians[:-span]
        last = medians[-span:]
        is_apart = _is_beyond(searched, span, risk / len(SPANS), delta)
        if is_apart and mann_whitney(before, last) <= risk / len(SPANS):
            middle_s = math.sqrt(float(np.median(before) * np.median(last)))
            return LastingChange(bool(np.median(last) > np.median(before)), span, middle_s)
    return None


def _is_beyond(launches: Sequence[HealthyLaunch], span: int, risk: float, delta: float) -> bool:
    """Whether the mean of the last `span` launches is outside of the prediction interval made from
    the others, however launches are grouped."""
    shifts = predictions(launches[:-span], launches[-span:])
    return all(
        abs(each.shift) > max(math.log1p(delta), each.half_width(risk / 2)) for each in shifts
    )


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
