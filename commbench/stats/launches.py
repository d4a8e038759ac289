"""The launches of a row: how many starts of fresh processes its visits come from, and the median of
each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

FEW_LAUNCHES = 3  # per side: with fewer, a difference is stated for this run only


def launch_medians(median_s: float, visits: Any, launches: Any) -> list[float]:
    """The medians of the launches of a row: of timing=rigorous, computed from its visits; else the
    row's own."""
    by_launch: dict[float, list[float]] = {}
    if isinstance(visits, Iterable) and isinstance(launches, Iterable):
        for seconds, launch in zip(visits, launches, strict=True):
            by_launch.setdefault(float(launch), []).append(float(seconds))
    few = len(by_launch) < FEW_LAUNCHES
    return [median_s] if few else [float(np.median(seconds)) for seconds in by_launch.values()]
