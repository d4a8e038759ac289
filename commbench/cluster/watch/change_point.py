"""Whether the last launches of a case are slower or faster than those before, and since when a case
is: the change point of its medians, in order of time.

A change that is smaller than single launches vary by shows in many of them together. So those after
the change point are compared with all before, by the Mann-Whitney test; the risk is divided by the
number of places where it may be. Launches of a day may be more alike, so their days must differ as
well.

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

from commbench.cluster.baseline.healthy_launches import GROUP_OF, HealthyLaunch, medians_s
from commbench.results.columns import grouped
from commbench.stats.difference import mann_whitney, ratio
from commbench.stats.series import Series

MOST_SEARCHED = 200  # launches; before them nothing is looked for
LEAST_BEFORE = 5  # launches
LEAST_AFTER = 3
DAY_RISK = 0.01


@dataclass(frozen=True)
class LastingChange:
    """The last launches of a series are slower, or faster, than those before. `middle_s` is halfway
    between both."""

    slower: bool
    middle_s: float

    def is_shown_by(self, medians_s: Series) -> bool:
        """Whether all of these times are on the changed side of the middle."""
        return bool(np.all((medians_s > self.middle_s) == self.slower))


def lasting_change(
    launches: Sequence[HealthyLaunch], risk: float, delta: float
) -> LastingChange | None:
    """What the launches since the change point of a series, oldest first, show together; None if
    nothing.

    `risk` is the probability that independent launches without a change show one; `delta`: the
    least change that matters, 0.02 is 2 %.
    """
    searched = launches[-MOST_SEARCHED:]
    places = len(searched) - LEAST_BEFORE - LEAST_AFTER + 1
    if places < 1:
        return None
    medians = medians_s(searched)
    for slower in (True, False):
        first = last_change(medians, slower).first
        before, after = searched[:first], searched[first:]
        if first < LEAST_BEFORE or len(after) < LEAST_AFTER:
            continue
        step = ratio(medians_s(before), medians_s(after))
        is_large = abs(math.log(step)) > math.log1p(delta)
        is_certain = mann_whitney(medians_s(before), medians_s(after)) <= risk / (2 * places)
        if is_large and is_certain and _differ_by_day(before, after):
            middle_s = float(np.median(medians_s(before))) * math.sqrt(step)
            return LastingChange(slower, middle_s)
    return None


def _differ_by_day(before: Sequence[HealthyLaunch], after: Sequence[HealthyLaunch]) -> bool:
    """Whether they also differ with the launches of a day taken for one; true within one day."""
    days = [
        np.array([np.median(medians_s(day)) for day in grouped(side, GROUP_OF["days"]).values()])
        for side in (before, after)
    ]
    is_one_day = len(grouped([*before, *after], GROUP_OF["days"])) == 1
    return is_one_day or mann_whitney(*days) <= DAY_RISK


@dataclass(frozen=True)
class ChangePoint:
    """`first` is the index of the first run after the change; `ratio` is the median after it over
    the median before."""

    first: int
    ratio: float


def last_change(medians: Series, slower: bool, last_s: float | None = None) -> ChangePoint:
    """The change point of a series of at least two medians in seconds, oldest first, of which the
    last is known to be slower, or faster, than those before.

    With `last_s`, the time since the change, only places count where the median after is nearer to
    it than to the median before: others divide older launches.
    """
    skipped = max(0, medians.size - MOST_SEARCHED)
    sign = 1.0 if slower else -1.0
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
