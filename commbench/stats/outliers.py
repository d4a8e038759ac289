"""Which of several equal parts are slower than the others: nodes at the same work, ranks with all
their pairs.

A part is slow if the log of its time lies above the median of all parts by more than a limit in
units of their spread (MAD x 1.4826, which up to half of the parts do not change), and if even the
lower end of its interval is above that median by the least slowdown that matters.

The limit is that which the slowest of so many healthy parts passes in FALSE_ALARMS of the suites,
divided among the cases (Bonferroni). It is found by simulation with normal logs of times: the
spread of few parts is itself uncertain, which makes it higher than that of the normal distribution.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from commbench.stats.interval import Interval
from commbench.stats.series import MAD_TO_SIGMA
from commbench.stats.thresholds import FALSE_ALARMS

LEAST_PARTS = 5  # the spread of four says nothing
LEAST_NOISE = 1e-3  # of equal times the spread is not 0
MOST_DRAWS = 50_000  # healthy suites that the limit is taken from
MOST_VALUES = 4_000_000  # of all of them
CHUNK_VALUES = 500_000


@dataclass(frozen=True)
class SlowPart:
    """`ratio` is the time over the median of all parts; `spreads` is its distance from that, of
    which `limit` is the most that chance explains. `place` counts from the slowest, 1."""

    ratio: float
    spreads: float
    limit: float
    place: int


def slow_parts(times: Mapping[int, Interval], slowdown: float, cases: int) -> dict[int, SlowPart]:
    """The slow ones of these parts, the slowest first; none among too few. `times` are those of one
    of so many cases."""
    if len(times) < LEAST_PARTS:
        return {}
    log_s = {part: float(np.log(each.value)) for part, each in times.items()}
    center = float(np.median([*log_s.values()]))
    distances = [abs(log - center) for log in log_s.values()]
    spread = max(MAD_TO_SIGMA * float(np.median(distances)), LEAST_NOISE)
    limit = spread_limit(len(times), FALSE_ALARMS / cases)
    order = sorted(log_s, key=lambda part: -log_s[part])
    slow = {}
    for place, part in enumerate(order, start=1):
        excess = log_s[part] - center
        matters = times[part].low > (1 + slowdown) * np.exp(center)
        if matters and excess > limit * spread:
            slow[part] = SlowPart(float(np.exp(excess)), excess / spread, limit, place)
    return slow


@functools.cache
def spread_limit(parts: int, level: float) -> float:
    """How many spreads above the median the slowest of so many healthy parts is, in all but this
    share of the cases."""
    random = np.random.default_rng(parts)
    draws = max(1, min(MOST_DRAWS, MOST_VALUES // parts))
    chunk = max(1, CHUNK_VALUES // parts)
    extremes = []
    for first in range(0, draws, chunk):
        values = random.standard_normal((min(chunk, draws - first), parts))
        values -= np.median(values, axis=1, keepdims=True)
        spreads = MAD_TO_SIGMA * np.median(np.abs(values), axis=1)
        extremes.append(values.max(axis=1) / spreads)
    return float(np.quantile(np.concatenate(extremes), 1 - level))
