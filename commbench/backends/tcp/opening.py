"""Connections that are made while the clock runs: one between each two ranks of a communicator."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.core.opening import Opening
from commbench.engines.lowered import Call

from .lowering import OPENED, Endpoint, barrier_partners, disseminate


class TcpOpener:
    """See Opener. `ranks` are the world ranks of the case, `rank` is the place of this one in
    it."""

    def __init__(self, endpoint: Endpoint, ranks: Sequence[int], rank: int) -> None:
        self._endpoint = endpoint
        self._ranks = ranks
        self._rank = rank
        self._members: tuple[int, ...] = ()

    def opening(self, step: Opening) -> Call:
        """All peers at once: the one with the lower rank connects, the other has a listener."""
        self._members = step.members(self._rank, len(self._ranks))
        return Call(self._endpoint.connect, (self._keys(),))

    def first_call(self) -> None:
        partners = barrier_partners(self._members.index(self._rank), len(self._members))
        rounds = [
            tuple(self._endpoint[self._ranks[self._members[place]], OPENED] for place in pair)
            for pair in partners
        ]
        disseminate(rounds, memoryview(bytearray(1)))

    def close(self) -> None:
        self._endpoint.disconnect(self._keys())

    def _keys(self) -> list[tuple[int, int]]:
        peers = (rank for rank in self._members if rank != self._rank)
        return [(self._ranks[peer], OPENED) for peer in peers]
