"""A window of non-blocking messages in one direction, answered by one small acknowledgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core.case import Case, Shape
from commbench.core.payload import joined_blocks, message
from commbench.core.program import BufferSpec, Irecv, Isend, Pattern, Program, Recv, Send, View, WaitAll

from .point_to_point import Pair, PointToPoint, window_of

ACK_BYTES = 4  # as osu_bw: when the sender has received it, the next window may start
ACK_KEY = 1 << 20  # added to the rank: above the keys of all ranks' messages


@dataclass(frozen=True)
class P2PBandwidth(PointToPoint):
    name: ClassVar[str] = "p2p_bandwidth"

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        (first, second), window = pair, window_of(case)
        ack = BufferSpec("ack", ACK_BYTES, "uint8")
        send, recv = (BufferSpec(name, case.count, case.dtype, window) for name in ("send", "recv"))
        wait = WaitAll(tuple(range(window)))
        receives = tuple(Irecv(View("recv", slot), first, slot) for slot in range(window))
        if first == second:
            to_self = (Isend(View("send", slot), rank, window + slot) for slot in range(window))
            return Program((send, recv), (*receives, *to_self, WaitAll(tuple(range(2 * window)))))
        if rank == second:
            return Program((recv, ack), (*receives, wait, Send(View("ack"), first)))
        sends = (Isend(View("send", slot), second, slot) for slot in range(window))
        return Program((send, ack), (*sends, wait, Recv(View("ack"), second)))

    def shape(self, case: Case, size: int) -> Shape:
        """The window of one pair."""
        return Shape(window_of(case), window_of(case) * case.message_bytes, "initiator")

    def bus_factor(self, size: int) -> float | None:
        """1: every byte crosses the link once (nccl-tests src/sendrecv.cu)."""
        return 1.0

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name == "send":
            return joined_blocks(rank, salt, case.count, range(window_of(case)))
        pair = case.pair_of(rank)
        acknowledges = name == "ack" and pair is not None and rank == pair[1]
        return message(ACK_KEY + rank, salt, ACK_BYTES) if acknowledges else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        pair = case.pair_of(rank)
        if pair is None:
            return None
        first, second = pair
        if name == "recv":
            return joined_blocks(first, salt, case.count, range(window_of(case)))
        return message(ACK_KEY + second, salt, ACK_BYTES) if name == "ack" and rank == first else None
