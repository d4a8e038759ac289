"""A window of non-blocking messages one way, answered by one small acknowledgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.contracts import BufferSpec, Case, Irecv, Isend, Pattern, Program, Recv, Send, Shape, Step, View, WaitAll
from commbench.payload import message

ACK_BYTES = 4  # as osu_bw: the sender may start the next window when the receiver has this one
ACK_KEY = 1 << 20  # no rank's own key


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
        first, second = case.pairs[0]
        window = case.window or 1
        ack = BufferSpec("ack", ACK_BYTES, "uint8")
        everything = WaitAll(tuple(range(window)))
        sends: tuple[Step, ...] = tuple(Isend(View("send", slot), second, slot) for slot in range(window))
        receives: tuple[Step, ...] = tuple(Irecv(View("recv", slot), first, slot) for slot in range(window))
        if rank == first == second:
            buffers = tuple(BufferSpec(name, case.count, case.dtype, window) for name in ("send", "recv"))
            to_self = tuple(Isend(View("send", slot), rank, window + slot) for slot in range(window))
            return Program(buffers, (*receives, *to_self, WaitAll(tuple(range(2 * window)))))
        if rank == first:
            buffers = (BufferSpec("send", case.count, case.dtype, window), ack)
            return Program(buffers, (*sends, everything, Recv(View("ack"), second)))
        if rank == second:
            buffers = (BufferSpec("recv", case.count, case.dtype, window), ack)
            return Program(buffers, (*receives, everything, Send(View("ack"), first)))
        return Program()

    def shape(self, case: Case, size: int) -> Shape:
        window = case.window or 1
        return Shape(window, window * case.message_bytes, "initiator")

    def bus_factor(self, size: int) -> float | None:
        """1: every byte crosses the link once (nccl-tests src/sendrecv.cu)."""
        return 1.0

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        _, second = case.pairs[0]
        if name == "send":
            return message(rank, salt, case.count * (case.window or 1))
        return message(ACK_KEY, salt, ACK_BYTES) if name == "ack" and rank == second else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        first, _ = case.pairs[0]
        if name == "recv":
            return message(first, salt, case.count * (case.window or 1))
        return message(ACK_KEY, salt, ACK_BYTES) if name == "ack" and rank == first else None
