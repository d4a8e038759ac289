"""By which rule a suite is judged: how far launches may be from the healthy ones of a store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commbench.cluster.baseline.healthy_launches import (
    HealthyLaunch,
    level_tests,
    log_ratio,
    medians_s,
)
from commbench.stats.interval import Interval
from commbench.stats.thresholds import (
    CHANGED_SPREADS,
    DECIDING_LAUNCHES,
    FALSE_CHANGES,
    LASTING_SHARE,
)
from commbench.stats.verdict import Verdict, suspect_ratio

NEAR_SHARE = 0.1  # 9 to 11 % is about 10 %


@dataclass(frozen=True)
class DayLevels:
    """How much the days of a case differ: the standard deviation of the logs of their levels, None
    for a single day. `told_from`: the ratio from which one launch a day shows a change."""

    between: float | None
    told_from: float


@dataclass(frozen=True)
class WatchRule:
    """How a suite is judged. `cases`: how many it has; `delta`: the least change that matters,
    0.02 is 2 %."""

    cases: int
    delta: float

    @property
    def lasting_risk(self) -> float:
        """That the last launches of a case look changed, without a change."""
        return LASTING_SHARE / max(self.cases, 1)

    @property
    def change_risk(self) -> float:
        """That days alone let a case look changed in a turn."""
        return FALSE_CHANGES / max(self.cases, 1)

    def healthy_range(
        self, healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]
    ) -> Interval | None:
        """Beyond which `accept` would suspect a launch, on the day of the new ones, from
        CHANGED_SPREADS on; None with too few of either."""
        if len(healthy) < DECIDING_LAUNCHES or not new:
            return None
        medians = medians_s(healthy)
        middle_s = float(np.median(medians))
        tests = level_tests(healthy, new[:1])
        factor = suspect_ratio(medians, 1, self.delta, tests, CHANGED_SPREADS)
        return Interval(middle_s, middle_s / factor, middle_s * factor, n=medians.size)

    def verdict(self, healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]) -> Verdict:
        """On which side of the healthy range all new launches are; UNDECIDED with too few of
        either."""
        expected = self.healthy_range(healthy, new)
        if expected is None:
            return "UNDECIDED"
        medians = medians_s(new)
        if medians.min() > expected.high:
            return "SLOWER"
        return "FASTER" if medians.max() < expected.low else "SAME"

    def is_at_delta(self, healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]) -> bool:
        """Whether the new launches differ for certain, by so nearly `delta` that noise decides on
        which side of it each of them is."""
        if len(healthy) < DECIDING_LAUNCHES or not new:
            return False
        tests = level_tests(healthy, new[:1])
        noise = math.log(suspect_ratio(medians_s(healthy), 1, 0.0, tests, CHANGED_SPREADS))
        least = math.log1p(self.delta)
        step = abs(log_ratio(healthy, new))
        return step > noise and abs(step - least) <= max(noise / 2, NEAR_SHARE * least)

    def day_levels(self, healthy: Sequence[HealthyLaunch]) -> DayLevels | None:
        """None with too few in the store."""
        if len(healthy) < DECIDING_LAUNCHES:
            return None
        of_days, *of_hosts = level_tests(healthy, [replace(healthy[-1], day="another")])
        farthest = max(test.distance(self.change_risk) for test in (of_days, *of_hosts))
        return DayLevels(of_days.between if of_days.degrees else None, math.exp(farthest))
