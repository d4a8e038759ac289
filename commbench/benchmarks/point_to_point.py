"""The base class of the operations between pairs of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from commbench.core.case import Benchmark
from commbench.core.layout import Pair
from commbench.core.payload import CACHED_STREAMS, joined_blocks
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
from commbench.core.variables import Cache, Case


@dataclass(frozen=True)
class PointToPoint(Benchmark):
    """Messages between the two ranks of each pair, from the buffers `send` to `recv`; all other
    ranks are idle."""

    name: ClassVar[str]
    axes: ClassVar[tuple[str, ...]] = ("pair", "window", "buffers")
    cache: ClassVar[Cache] = "rotate"
    min_ranks: ClassVar[int] = 1  # a rank can be paired with itself
    self_synchronising: ClassVar[bool] = True

    def blocks(self, size: int) -> int:
        return 1

    def program(self, case: Case, rank: int, size: int) -> Program:
        pair = case.pair_by_rank.get(rank)
        return Program() if pair is None else self.pair_program(case, rank, pair)

    def buffers(self, case: Case, rank: int, size: int) -> tuple[BufferSpec, ...]:
        pair = case.pair_by_rank.get(rank)
        return () if pair is None else self.pair_buffers(case, rank, pair)

    def pair_buffers(self, case: Case, rank: int, pair: Pair) -> tuple[BufferSpec, ...]:
        """The buffers of a rank of this pair."""
        return send_and_recv(case)

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        """The program of a rank of this pair, both ranks of which may be the same."""
        raise NotImplementedError

    def bus_factor(self, case: Case, size: int) -> float | None:
        """1: every byte crosses the link once (nccl-tests src/sendrecv.cu)."""
        return 1.0

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self._sent(case, rank, salt) if name == "send" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return (
            self._sent(case, sum(case.pair_by_rank[rank]) - rank, salt) if name == "recv" else None
        )

    def _sent(self, case: Case, sender: int, salt: int) -> Pattern:
        """The messages of a sample in one direction."""
        return messages(sender, salt, case.elements, slots_of(case))


@lru_cache(maxsize=CACHED_STREAMS)
def messages(sender: int, salt: int, count: int, slots: int) -> Pattern:
    """Slot after slot. The same object each time: a process that hosts many ranks keeps the words
    of a pattern."""
    return joined_blocks(sender, salt, count, range(slots))


def window_of(case: Case) -> int:
    return case.window or 1


def slots_of(case: Case) -> int:
    """The number of messages of a window that have their own memory: all, or one with
    buffers=shared (as in osu_bw)."""
    return 1 if case.buffers == "shared" else window_of(case)


def send_and_recv(case: Case) -> tuple[BufferSpec, ...]:
    return tuple(
        BufferSpec(name, case.elements, case.dtype, slots_of(case)) for name in ("send", "recv")
    )


def windows_both_ways(case: Case, peer: int) -> Program:
    """A window of messages to the peer and one from it at the same time; the peer may be the rank
    itself."""
    window = window_of(case)
    receives = (Start(Recv(slot_view("recv", slot, case), peer), slot) for slot in range(window))
    sends = (
        Start(Send(slot_view("send", slot, case), peer), window + slot) for slot in range(window)
    )
    return Program(send_and_recv(case), (*receives, *sends, WaitAll(tuple(range(2 * window)))))


def slot_view(buffer: str, index: int, case: Case) -> View:
    """The memory of a message of a window."""
    return View(buffer, index % slots_of(case))
