"""Windows of messages one way on many pairs at once: what the links give together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core.case import Case, Shape

from .p2p_bandwidth import P2PBandwidth


@dataclass(frozen=True)
class P2PMultiPair(P2PBandwidth):
    """Each pair does what p2p_bandwidth does; the senders start together, after a barrier."""

    name: ClassVar[str] = "p2p_multi_pair"
    axes: ClassVar[tuple[str, ...]] = ("pairs", "window")
    self_synchronising: ClassVar[bool] = False

    def shape(self, case: Case, size: int) -> Shape:
        """The windows of all pairs: P W messages and P W S bytes, over the time of the last sender (osu_mbw_mr)."""
        messages = len(case.pairs) * (case.window or 1)
        return Shape(messages, messages * case.message_bytes, "max_over_senders")

    def bus_factor(self, size: int) -> float | None:
        """None: an aggregate P W S / t has no one link to be held against, and P is not known from the size."""
        return None
