"""Which nodes are slower than the others at the same work, each measured alone.

A node is slow in a case if the log of its time lies above the median of all nodes by more than a
limit in units of their spread (MAD x 1.4826, which up to half of the nodes do not change), and if
even the lower end of its interval is above that median by the least slowdown that matters.

The limit is that which the slowest of so many healthy nodes passes in `false_alarm` of the
clusters, divided among the cases (Bonferroni). It is found by simulation with normal logs of times:
the spread of few nodes is itself uncertain, which makes it higher than that of the normal
distribution.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commbench.stats.series import MAD_TO_SIGMA
from commbench.stats.thresholds import FALSE_ALARMS

LEAST_NODES = 5  # the spread of four says nothing
LEAST_NOISE = 1e-3  # of equal times the spread is not 0
MOST_DRAWS = 50_000  # healthy clusters that the limit is taken from
MOST_VALUES = 4_000_000  # of all of them
CHUNK_VALUES = 500_000


@dataclass(frozen=True)
class NodeTimes:
    """The seconds of one case on each node, and the lower ends of their intervals."""

    title: str
    median_s: Mapping[int, float]
    low_s: Mapping[int, float]


@dataclass(frozen=True)
class SlowNode:
    """`ratio` is the time over the median of all nodes; `spreads` is its distance from that, of
    which `limit` is the most that chance explains. `place` counts from the slowest, 1."""

    node: int
    title: str
    ratio: float
    spreads: float
    limit: float
    place: int

    @property
    def text(self) -> str:
        place = "the slowest" if self.place == 1 else f"the {self.place}. slowest"
        return (
            f"{self.title} takes {100 * (self.ratio - 1):.0f} % longer than on the median node,"
            f" {place}; {self.spreads:.1f} spreads of the nodes, the limit is {self.limit:.1f}"
        )


def slow_nodes(
    cases: Sequence[NodeTimes], slowdown: float, false_alarm: float = FALSE_ALARMS
) -> list[SlowNode]:
    """The slow nodes of all cases, which must have the same number of nodes; the worst first."""
    named = []
    for case in cases:
        nodes = list(case.median_s)
        log_s = np.log([case.median_s[node] for node in nodes])
        center = float(np.median(log_s))
        spread = max(MAD_TO_SIGMA * float(np.median(np.abs(log_s - center))), LEAST_NOISE)
        limit = spread_limit(len(nodes), false_alarm / len(cases))
        order = np.argsort(-log_s)
        for place, index in enumerate(order.tolist(), start=1):
            node = nodes[index]
            spreads = float(log_s[index] - center) / spread
            matters = np.log(case.low_s[node]) - center > np.log1p(slowdown)
            if spreads > limit and matters:
                ratio = float(np.exp(log_s[index] - center))
                named.append(SlowNode(node, case.title, ratio, spreads, limit, place))
    return sorted(named, key=lambda slow: -slow.ratio)


@functools.cache
def spread_limit(nodes: int, level: float) -> float:
    """How many spreads above the median the slowest of so many healthy nodes is, in all but this
    share of the cases."""
    random = np.random.default_rng(nodes)
    draws = max(1, min(MOST_DRAWS, MOST_VALUES // nodes))
    chunk = max(1, CHUNK_VALUES // nodes)
    extremes = []
    for first in range(0, draws, chunk):
        values = random.standard_normal((min(chunk, draws - first), nodes))
        values -= np.median(values, axis=1, keepdims=True)
        spreads = MAD_TO_SIGMA * np.median(np.abs(values), axis=1)
        extremes.append(values.max(axis=1) / spreads)
    return float(np.quantile(np.concatenate(extremes), 1 - level))
