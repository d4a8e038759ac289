"""Which nodes are slow, from the times of pairs of nodes that meet in rounds.

A node's value says how much longer than typical it takes: to send, to receive, and its latency. A
slow partner makes a few of its times slow and none fast.

The first rounds clear the nodes whose upper bound is below `slowdown`. The others are suspects, and
only rounds that follow decide about them: a suspect is bad if its lower bound there is above
`SURE_SHARE` of `slowdown`. What is neither bad nor cleared is undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commbench.cluster.search.first_rounds import FirstRounds
from commbench.cluster.search.pair_times import Cluster, Flags, PairTimes
from commbench.cluster.search.rank_excess import Excess, excess_of
from commbench.cluster.search.switch_hops import without_hop
from commbench.stats.thresholds import SLOW_SWITCH_SHARE, SURE_SHARE
from commbench.stats.verdict import Verdict


@dataclass(frozen=True, eq=False)
class Findings:
    """`is_bad` and `is_undecided` [aspects, ranks] with the evidence for them; `is_outpaced`: a
    quarter of the ranks is faster than the typical one. `could_see` has the smallest slowdown of
    each metric that is named in 95 % of such runs; `further_visits` are those that each node needs
    after the first rounds."""

    cluster: Cluster
    excess: Excess
    is_bad: Flags
    is_undecided: Flags
    is_outpaced: bool
    could_see: dict[str, float]
    further_visits: int

    def verdicts(self) -> tuple[Verdict, ...]:
        """Of each node: that of the worst of its ranks. All nodes of a bad switch are SLOWER."""
        bad = self._of_nodes(self.is_bad)
        for nodes in self.bad_switches().values():
            bad[nodes] = True
        # of two nodes, a slow one is in all pairs of both
        undecided = self._of_nodes(self.is_undecided) | (self.cluster.nodes == 2)
        return tuple(
            "SLOWER" if is_bad else "UNDECIDED" if is_undecided else "SAME"
            for is_bad, is_undecided in zip(bad, undecided, strict=True)
        )

    def bad_switches(self) -> dict[str, list[int]]:
        """Those of which most nodes are bad, and their nodes."""
        bad = self._of_nodes(self.is_bad)
        return {
            name: nodes
            for name, nodes in self.cluster.members.items()
            if bad[nodes].mean() >= SLOW_SWITCH_SHARE
        }

    def _of_nodes(self, flags: Flags) -> Flags:
        by_node = flags.any(axis=0).reshape(self.cluster.nodes, -1)
        return np.asarray(by_node.any(axis=1))


def findings_of(
    first: PairTimes, further: PairTimes, cluster: Cluster, slowdown: float
) -> Findings:
    """What the first rounds say about each rank, and the further ones about suspects."""
    slow = math.log1p(slowdown)
    sure = math.log1p(SURE_SHARE * slowdown)
    screened = FirstRounds(without_hop(first, cluster), cluster, slow, sure)
    again = excess_of(without_hop(further, cluster), cluster, screened.level)

    is_again = screened.is_suspect & (again.times > 0)
    excess = screened.excess.replaced(is_again, again)
    is_bad = is_again & (excess.low > sure)
    is_cleared = (excess.high < slow) & ~screened.is_outpaced
    return Findings(
        cluster=cluster,
        excess=excess,
        is_bad=is_bad,
        is_undecided=np.asarray(screened.is_measured & ~is_bad & ~is_cleared),
        is_outpaced=bool(screened.is_outpaced.any()),
        could_see=screened.could_see,
        further_visits=screened.further_visits,
    )
