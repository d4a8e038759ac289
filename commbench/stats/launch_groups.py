"""Launches of one setting that fall into two groups, as where a library chooses by chance which
algorithm a launch takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST_LAUNCHES = 5
LEAST_OF_GROUP = 2
LEAST_FACTOR = 1.2  # between the groups
CLEAR = 2.0  # times the width of the wider group


class LaunchGroups(NamedTuple):
    """`slow` of `launches` take `factor` times as long as the others, by the medians of both."""

    slow: int
    launches: int
    factor: float

    @property
    def text(self) -> str:
        return f"{self.slow} of {self.launches} launches take {self.factor:.2f} x as long"


def launch_groups(seconds: Sequence[float]) -> LaunchGroups | None:
    """None where they are one group. Two have a gap between them that is CLEAR times as wide as the
    wider one, on a scale of ratios."""
    logs = np.sort(np.log(np.asarray(seconds, dtype=np.float64)))
    if len(logs) < LEAST_LAUNCHES:
        return None
    inner = slice(LEAST_OF_GROUP - 1, len(logs) - LEAST_OF_GROUP)
    first_slow = LEAST_OF_GROUP + int(np.argmax(np.diff(logs)[inner]))
    fast, slow = logs[:first_slow], logs[first_slow:]
    gap = slow[0] - fast[-1]
    if gap <= max(CLEAR * np.ptp(fast), CLEAR * np.ptp(slow), np.log(LEAST_FACTOR)):
        return None
    factor = float(np.exp(np.median(slow) - np.median(fast)))
    return LaunchGroups(len(slow), len(logs), factor)
