"""The launches of healthy machines, and how far other launches may be from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commbench.stats.difference import ratio
from commbench.stats.levels import GroupedLaunches, LevelTest, level_test
from commbench.stats.series import Series

Grouping = Literal["days", "sets of hosts"]


@dataclass(frozen=True)
class HealthyLaunch:
    """A launch of a case: its median, its run, on which hosts, and on which day (UTC)."""

    median_s: float
    run_id: str
    hosts: str
    day: str


GROUP_OF: dict[Grouping, Callable[[HealthyLaunch], str]] = {
    "days": lambda launch: launch.day,
    "sets of hosts": lambda launch: launch.hosts,
}


def medians_s(launches: Sequence[HealthyLaunch]) -> Series:
    return np.array([launch.median_s for launch in launches])


def log_ratio(healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]) -> float:
    """The logarithm of the ratio of the new median to the healthy one."""
    return math.log(ratio(medians_s(healthy), medians_s(new)))


def level_tests(healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]) -> list[LevelTest]:
    """Of the groupings in which both sides have not the same groups."""
    tests = (
        level_test(_grouped(healthy, group_of), _grouped(new, group_of))
        for group_of in GROUP_OF.values()
    )
    return [test for test in tests if test is not None]


def levels_differ(
    healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch], risk: float
) -> bool:
    """Whether new launches are farther away than days and hosts explain; `risk`: the probability of
    that where nothing else differs."""
    return all(test.p_value <= risk for test in level_tests(healthy, new))


def level_spread(
    launches: Sequence[HealthyLaunch], group_of: Callable[[HealthyLaunch], str]
) -> float:
    """The standard deviation of the logs of the levels of days, or of sets of hosts; 0 for one."""
    return _grouped(launches, group_of).between


def _grouped(
    launches: Sequence[HealthyLaunch], group_of: Callable[[HealthyLaunch], str]
) -> GroupedLaunches:
    return GroupedLaunches(medians_s(launches), [*map(group_of, launches)])
