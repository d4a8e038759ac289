"""Windows of messages in one direction on many pairs at once: the aggregate rate of the links."""

from __future__ import annotations

from commbench.core.case import Shape
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
        """None: the aggregate rate P W S / t is not that of a single link, and P does not follow
        from the size."""
        return None
