"""Windows of messages in one direction on many pairs at once: the aggregate rate of the links."""

from __future__ import annotations

from collections import Counter

from commbench.core.case import Shape
from commbench.core.layout import ACROSS_NODES, Layout
from commbench.core.variables import Case

from .p2p_bandwidth import P2PBandwidth
from .point_to_point import window_of


class P2PMultiPair(P2PBandwidth):
    """Each pair runs the program of p2p_bandwidth; the senders start together, after a barrier."""

    name = "p2p_multi_pair"
    axes = ("pairs", "window", "buffers")
    self_synchronising = False

    def shape(self, case: Case, size: int) -> Shape:
        """A sample is the windows of all P pairs: P W messages, P W S bytes, in the last sender's
        time (osu_mbw_mr)."""
        messages = len(case.pairs) * window_of(case)
        words = "window of the slowest sender / messages of all pairs"
        return Shape(
            messages, messages * case.message_bytes, "max_over_senders", words, single=messages == 1
        )

    def bus_factor(self, case: Case, size: int) -> float | None:
        """Between two nodes the share of the pairs that send in the busier direction, which is what
        their network carries. Else None: the aggregate rate P W S / t is that of many links."""
        layout = Layout.parse(case.layout)
        if layout.nodes != 2 or case.device != "cpu":
            return None
        crossing = [pair for pair in case.pairs if layout.link(pair) == ACROSS_NODES]
        directions = Counter(first < second for first, second in crossing)
        return max(directions.values()) / len(case.pairs) if crossing else None
