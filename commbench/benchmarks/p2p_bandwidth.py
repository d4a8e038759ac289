"""A window of non-blocking messages in one direction, answered by one small acknowledgement."""

from __future__ import annotations

from commbench.core.case import Case, Shape
from commbench.core.layout import Pair
from commbench.core.payload import message
from commbench.core.program import BufferSpec, Irecv, Isend, Pattern, Program, Recv, Send, View, WaitAll

from .point_to_point import PointToPoint, slot_view, slots_of, window_of

ACK_BYTES = 4  # as osu_bw: when the sender has received it, the next window may start
ACK_KEY = 1 << 20  # added to the rank: above the keys of all ranks' messages


class P2PBandwidth(PointToPoint):
    name = "p2p_bandwidth"

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        (first, second), window = pair, window_of(case)
        ack = BufferSpec("ack", ACK_BYTES, "uint8")
        send, recv = (BufferSpec(name, case.elements, case.dtype, slots_of(case)) for name in ("send", "recv"))
        wait = WaitAll(tuple(range(window)))
        receives = tuple(Irecv(slot_view("recv", slot, case), first, slot) for slot in range(window))
        if first == second:
            to_self = (Isend(slot_view("send", slot, case), rank, window + slot) for slot in range(window))
            return Program((send, recv), (*receives, *to_self, WaitAll(tuple(range(2 * window)))))
        if rank == second:
            return Program((recv, ack), (*receives, wait, Send(View("ack"), first)))
        sends = (Isend(slot_view("send", slot, case), second, slot) for slot in range(window))
        return Program((send, ack), (*sends, wait, Recv(View("ack"), second)))

    def shape(self, case: Case, size: int) -> Shape:
        """The window of one pair."""
        messages = window_of(case)
        return Shape(messages, messages * case.message_bytes, "initiator", "window / messages", single=messages == 1)

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name != "ack":
            return super().fill(case, rank, size, name, salt)
        pair = case.pair_by_rank.get(rank)
        return message(ACK_KEY + rank, salt, ACK_BYTES) if pair is not None and rank == pair[1] else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name != "ack":
            return super().expected(case, rank, size, name, salt)
        pair = case.pair_by_rank.get(rank)
        return message(ACK_KEY + pair[1], salt, ACK_BYTES) if pair is not None and rank == pair[0] else None
