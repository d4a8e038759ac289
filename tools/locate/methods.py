"""What others do to find a slow node (docs/locate.md), on the same simulated clusters."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from simulated_cluster import Result, SimulatedCluster

from commbench.cluster.bad_nodes import Numbers
from commbench.core.layout import pairing
from commbench.stats.thresholds import FALSE_ALARMS

RANDOM_PARTNERS = 5
# of a median of five normal values to that of one
MEDIAN_OF_FIVE = 0.536


def halfway(slowdown: float) -> float:
    """The log of a limit in the middle between typical and slow."""
    return math.log1p(slowdown) / 2


def rare_in_health(noise: float, values: int) -> float:
    """The log of a limit that one of so many healthy values passes in 1 % of the runs."""
    return noise * NormalDist().inv_cdf((1 - FALSE_ALARMS) ** (1 / values))


def bisected(cluster: SimulatedCluster, limit: float) -> Result:
    """Two halves of the nodes run a collective, whose time is that of its slowest member, at the
    same time; the slower half is divided again. The last node is confirmed with one that is good.
    """
    slowness = cluster.planted.slowness.max(axis=0)
    nodes = np.arange(cluster.nodes)
    reference = 0
    while len(nodes) > 1:
        halves = np.array_split(nodes, 2)
        times = [slowness[half].max() + cluster.random.normal(0, cluster.noise) for half in halves]
        cluster.rounds += 1
        cluster.visits += 1
        if abs(times[0] - times[1]) <= limit:
            return Result.of(cluster, ())
        slower = int(times[1] > times[0])
        nodes = halves[slower]
        reference = int(halves[1 - slower][0])
    suspect = int(nodes[0])
    times_of_pair = cluster.measured([(reference, suspect)]).log_s[:2]
    return Result.of(cluster, [suspect] if times_of_pair.max() > limit else [])


def one_after_another(cluster: SimulatedCluster, limit: float) -> Result:
    """Each node with node 0, one pair a round; slow if a direction is slower than the median."""
    others = np.arange(1, cluster.nodes)
    times = cluster.measured([(0, int(node)) for node in others]).log_s[: 2 * len(others)]
    cluster.rounds = len(others)
    cluster.visits = len(others)
    slower = times.reshape(2, -1).max(axis=0) - np.median(times) > limit
    return Result.of(cluster, others[slower].tolist())


def five_partners(cluster: SimulatedCluster, limit: float) -> Result:
    """Each node with five random partners; slow if the median of a direction is slower than that of
    all nodes."""
    order = cluster.random.permutation(cluster.nodes).tolist()
    times: Numbers = np.empty((RANDOM_PARTNERS, 2, cluster.nodes))
    for turn in range(RANDOM_PARTNERS):
        measured = cluster.measured(pairing(order, turn))
        bandwidth = ~measured.is_latency
        times[turn, 0, measured.source[bandwidth]] = measured.log_s[bandwidth]
        times[turn, 1, measured.destination[bandwidth]] = measured.log_s[bandwidth]
    medians = np.median(times, axis=0)
    slower = medians.max(axis=0) - np.median(times) > limit
    return Result.of(cluster, np.flatnonzero(slower).tolist())
