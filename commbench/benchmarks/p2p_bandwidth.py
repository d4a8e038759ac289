"""A window of non-blocking messages in one direction, answered by one small acknowledgement."""

from __future__ import annotations

from commbench.core.case import Shape
from commbench.core.layout import Pair
from commbench.core.payload import message
from commbench.core.program import (
    BufferSpec,
    Pattern,
    Program,
    Recv,
    Send,
    Start,
    View,
    WaitAll,
)
from commbench.core.variables import Case

from .point_to_point import PointToPoint, send_and_recv, slot_view, window_of, windows_both_ways

ACK_BYTES = 4  # as in osu_bw; when the sender has received it, the next window may start
ACK_KEY = 1 << 20  # added to the rank: larger than the keys of all messages


class P2PBandwidth(PointToPoint):
    name = "p2p_bandwidth"

    def pair_buffers(self, case: Case, rank: int, pair: Pair) -> tuple[BufferSpec, ...]:
        first, second = pair
        send, recv = send_and_recv(case)
        if first == second:
            return send, recv
        return recv if rank == second else send, BufferSpec("ack", ACK_BYTES, "uint8")

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        first, second = pair
        if first == second:
            return windows_both_ways(case, peer=rank)
        buffers = self.pair_buffers(case, rank, pair)
        slots = range(window_of(case))
        if rank == second:
            receives = (Start(Recv(slot_view("recv", slot, case), first), slot) for slot in slots)
            return Program(buffers, (*receives, WaitAll(tuple(slots)), Send(View("ack"), first)))
        sends = (Start(Send(slot_view("send", slot, case), second), slot) for slot in slots)
        return Program(buffers, (*sends, WaitAll(tuple(slots)), Recv(View("ack"), second)))

    def shape(self, case: Case, size: int) -> Shape:
        """A sample is the window of one pair."""
        messages = window_of(case)
        return Shape(
            messages,
            messages * case.message_bytes,
            "initiator",
            "window / messages",
            single=messages == 1,
        )

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name != "ack":
            return super().fill(case, rank, size, name, salt)
        return (
            message(ACK_KEY + rank, salt, ACK_BYTES) if rank == case.pair_by_rank[rank][1] else None
        )

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name != "ack":
            return super().expected(case, rank, size, name, salt)
        first, second = case.pair_by_rank[rank]
        return message(ACK_KEY + second, salt, ACK_BYTES) if rank == first else None
