"""A window of non-blocking messages one way, answered by one small acknowledgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core.case import Case, Shape
from commbench.core.payload import message
from commbench.core.program import BufferSpec, Irecv, Isend, Pattern, Program, Recv, Send, Step, View, WaitAll

from .blocks import joined_blocks

ACK_BYTES = 4  # as osu_bw: the sender may start the next window when the receiver has this one
ACK_KEY = 1 << 20  # and the rank's: no rank's own key


@dataclass(frozen=True)
class P2PBandwidth:
    name: ClassVar[str] = "p2p_bandwidth"
    axes: ClassVar[tuple[str, ...]] = ("pair", "window")
    cache: ClassVar[str] = "rotate"
    min_ranks: ClassVar[int] = 2
    self_synchronising: ClassVar[bool] = True

    def blocks(self, size: int) -> int:
        return 1

    def program(self, case: Case, rank: int, size: int) -> Program:
        pair, window = case.pair_of(rank), case.window or 1
        if pair is None:
            return Program()
        first, second = pair
        ack = BufferSpec("ack", ACK_BYTES, "uint8")
        sent, received = (BufferSpec(name, case.count, case.dtype, window) for name in ("send", "recv"))
        everything = WaitAll(tuple(range(window)))
        receives: tuple[Step, ...] = tuple(Irecv(View("recv", slot), first, slot) for slot in range(window))
        if first == second:
            to_self = (Isend(View("send", slot), rank, window + slot) for slot in range(window))
            return Program((sent, received), (*receives, *to_self, WaitAll(tuple(range(2 * window)))))
        if rank == second:
            return Program((received, ack), (*receives, everything, Send(View("ack"), first)))
        sends = (Isend(View("send", slot), second, slot) for slot in range(window))
        return Program((sent, ack), (*sends, everything, Recv(View("ack"), second)))

    def shape(self, case: Case, size: int) -> Shape:
        """The window of one pair."""
        window = case.window or 1
        return Shape(window, window * case.message_bytes, "initiator")

    def bus_factor(self, size: int) -> float | None:
        """1: every byte crosses the link once (nccl-tests src/sendrecv.cu)."""
        return 1.0

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name == "send":
            return joined_blocks(rank, salt, case.count, range(case.window or 1))
        pair = case.pair_of(rank)
        receiver = pair is not None and rank == pair[1]
        return message(ACK_KEY + rank, salt, ACK_BYTES) if name == "ack" and receiver else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        pair = case.pair_of(rank)
        if pair is None:
            return None
        first, second = pair
        if name == "recv":
            return joined_blocks(first, salt, case.count, range(case.window or 1))
        return message(ACK_KEY + second, salt, ACK_BYTES) if name == "ack" and rank == first else None
