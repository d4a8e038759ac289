"""Ping-pong: half a round trip of one blocking message."""

from __future__ import annotations

from commbench.core.case import Shape
from commbench.core.layout import Pair
from commbench.core.program import (
    Program,
    Recv,
    Send,
    Start,
    View,
    WaitAll,
)
from commbench.core.states import HALF_ROUND_TRIP
from commbench.core.variables import Case

from .point_to_point import PointToPoint


class P2PLatency(PointToPoint):
    name = "p2p_latency"
    axes = ("pair",)
    cache = "warm"

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        first, second = pair
        buffers = self.pair_buffers(case, rank, pair)
        send = View("send")
        recv = View("recv")
        if first == second:  # a blocking send to oneself deadlocks in MPI beyond the eager limit
            return Program(buffers, (Start(Recv(recv, rank), 0), Send(send, rank), WaitAll((0,))))
        if rank == first:
            return Program(buffers, (Send(send, second), Recv(recv, second)))
        return Program(buffers, (Recv(recv, first), Send(send, first)))

    def shape(self, case: Case, size: int) -> Shape:
        """A sample is the round trip of one pair: two messages, so that the time per message is
        half of it."""
        first, second = case.pairs[0]
        messages = 1 if first == second else 2
        return Shape(messages, messages * case.message_bytes, "initiator", HALF_ROUND_TRIP)
