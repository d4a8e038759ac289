"""Connections that are made while the clock runs: one between each two ranks of a communicator."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.backends.opening import Opening
from commbench.core.program import Group
from commbench.engines.lowered import Call

from .backend import Tcp, TcpCommunicator
from .lowering import OPENED, barrier_partners, disseminate


class TcpOpener:
    """See Opener."""

    def __init__(self, communicator: TcpCommunicator) -> None:
        self._endpoint = communicator.endpoint
        self._ranks = communicator.ranks
        (self._rank,) = communicator.hosted

    def open(self, groups: Sequence[Group], colour: int | None) -> Call:
        """All peers at once: the one with the lower rank connects, the other has a listener."""
        return Call(self._endpoint.connect, (self._keys(groups[colour or 0]),))

    def first_call(self, members: Group) -> Call:
        return Call(self._meet, (members,))

    def _meet(self, members: Group) -> None:
        partners = barrier_partners(members.index(self._rank), len(members))
        rounds = [
            tuple(self._endpoint[self._ranks[members[place]], OPENED] for place in pair)
            for pair in partners
        ]
        disseminate(rounds, memoryview(bytearray(1)))

    def close(self, members: Group) -> Call:
        return Call(self._endpoint.disconnect, (self._keys(members),))

    def _keys(self, members: Group) -> list[tuple[int, int]]:
        return [(self._ranks[peer], OPENED) for peer in members if peer != self._rank]


OPENING = Opening(Tcp, TcpCommunicator, TcpOpener)
