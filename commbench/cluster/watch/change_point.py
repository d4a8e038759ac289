"""Whether the last launches of a case are slower or faster than those before, and since when a case
is: the change point of its medians, in order of time.

A change that is smaller than single launches vary by shows in many of them together. So those after
the change point are compared with all before: launches of one day by the Mann-Whitney test, whose
risk is divided by the number of places where the change may be; those of several days by the levels
of their days (stats/levels.py), where of k days after the change point 1 / (k (k + 1)) of the risk
is theirs. The sum of these shares is 1.

The change point splits the series so that the sum of the absolute distances of the logarithms to
the median of their own part is least (least absolute deviations, Bai 1995). A single disturbed run
moves no median, so it is not taken for the beginning of a change.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commbench.cluster.baseline.healthy_launches import (
    HealthyLaunch,
    level_tests,
    levels_differ,
    medians_s,
)
from commbench.stats.difference import mann_whitney, ratio
from commbench.stats.series import Series
from commbench.stats.thresholds import DECIDING_LAUNCHES
from commbench.stats.verdict import Verdict

MOST_SEARCHED = 200  # launches; before them nothing is looked for
LEAST_AFTER = 3


@dataclass(frozen=True)
class LastingChange:
    """The launches after the change point of a series are SLOWER, or FASTER, than those before."""

    verdict: Verdict
    before: Sequence[HealthyLaunch]
    after: Sequence[HealthyLaunch]

    def is_shown_by(self, fresh: Sequence[HealthyLaunch], risk: float) -> bool:
        """Whether all of these launches are nearer to those after than to those before, and all
        since the change are farther away than days explain."""
        before_s, after_s = (np.median(medians_s(side)) for side in (self.before, self.after))
        is_slower = medians_s(fresh) > math.sqrt(before_s * after_s)
        is_nearer = bool(np.all(is_slower == (self.verdict == "SLOWER")))
        return is_nearer and _days_differ(self.before, [*self.after, *fresh], risk)


def lasting_change(
    launches: Sequence[HealthyLaunch], risk: float, delta: float
) -> LastingChange | None:
    """What the launches since the change point of a series, oldest first, show together; None if
    nothing.

    `risk` is the probability that launches without a change show one; `delta`: the least change
    that matters, 0.02 is 2 %.
    """
    searched = launches[-MOST_SEARCHED:]
    places = len(searched) - DECIDING_LAUNCHES - LEAST_AFTER + 1
    if places < 1:
        return None
    medians = medians_s(searched)
    directions: tuple[Verdict, ...] = ("SLOWER", "FASTER")
    for verdict in directions:
        first = last_change(medians, verdict).first
        before, after = searched[:first], searched[first:]
        if first < DECIDING_LAUNCHES or len(after) < LEAST_AFTER:
            continue
        is_large = abs(math.log(ratio(medians_s(before), medians_s(after)))) > math.log1p(delta)
        if is_large and _differ(before, after, risk, places):
            return LastingChange(verdict, before, after)
    return None


def _differ(
    before: Sequence[HealthyLaunch], after: Sequence[HealthyLaunch], risk: float, places: int
) -> bool:
    if level_tests(before, after):
        return _days_differ(before, after, risk)
    return mann_whitney(medians_s(before), medians_s(after)) <= risk / (2 * places)


def _days_differ(
    before: Sequence[HealthyLaunch], after: Sequence[HealthyLaunch], risk: float
) -> bool:
    """Whether both are farther apart than days explain; true within one day."""
    days = len({launch.day for launch in after})
    return levels_differ(before, after, risk / (days * (days + 1)))


@dataclass(frozen=True)
class ChangePoint:
    """`first` is the index of the first run after the change; `ratio` is the median after it over
    the median before."""

    first: int
    ratio: float


def last_change(medians: Series, verdict: Verdict, last_s: float | None = None) -> ChangePoint:
    """The change point of a series of at least two medians in seconds, oldest first, of which the
    last is known to be SLOWER, or FASTER, than those before.

    With `last_s`, the time since the change, only places count where the median after is nearer to
    it than to the median before: others divide older launches.
    """
    skipped = max(0, medians.size - MOST_SEARCHED)
    sign = 1.0 if verdict == "SLOWER" else -1.0
    logs = (sign * np.log(medians[skipped:])).tolist()
    last = math.inf if last_s is None else sign * math.log(last_s)
    before = _parts(logs)[:-1]
    after = _parts(logs[::-1])[-2::-1]
    costs = [
        first.distance + second.distance if _is_step(first, second, last) else math.inf
        for first, second in zip(before, after, strict=True)
    ]
    split = int(np.argmin(costs)) if min(costs) < math.inf else len(costs) - 1
    level = after[split].median if last_s is None else last
    return ChangePoint(skipped + split + 1, math.exp(sign * (level - before[split].median)))


def _is_step(before: _Part, after: _Part, last: float) -> bool:
    """Whether the times rise, to what is nearer to the last ones than to those before."""
    if last == math.inf:
        return after.median > before.median
    return after.median > (before.median + last) / 2


class _Part(NamedTuple):
    """The median of the first values of a series, and the sum of their distances to it."""

    median: float
    distance: float


def _parts(values: Sequence[float]) -> list[_Part]:
    """Of the first value, the first two, and so on."""
    ordered: list[float] = []
    parts = []
    for value in values:
        insort(ordered, value)
        half = len(ordered) // 2
        upper = ordered[len(ordered) - half :]
        median = (ordered[half] + ordered[-half - 1]) / 2
        parts.append(_Part(median, sum(upper) - sum(ordered[:half])))
    return parts
