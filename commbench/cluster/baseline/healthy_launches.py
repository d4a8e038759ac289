"""The launches of healthy machines, and the ratio beyond which other launches are unlike them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commbench.results.columns import grouped
from commbench.stats.series import Series
from commbench.stats.thresholds import SUSPECT_SPREADS
from commbench.stats.verdict import suspect_ratio

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


def group_ratio(
    healthy: Sequence[HealthyLaunch],
    new: Sequence[HealthyLaunch],
    margin: float,
    spreads: float = SUSPECT_SPREADS,
) -> float:
    """The ratio from which new launches are suspect with all launches of a day, or of a set of
    hosts, taken for one: launches of a group may be more alike. The largest of the groupings of
    which there are several groups."""
    ratios = [1 + margin]
    for group_of in GROUP_OF.values():
        groups = grouped(healthy, group_of).values()
        if len(groups) > 1:
            medians = np.array([np.median(medians_s(group)) for group in groups])
            ratios.append(suspect_ratio(medians, len(grouped(new, group_of)), margin, spreads))
    return max(ratios)
