"""A stream: writes that follow one another without an answer, as iperf, tcpbench and netperf's
TCP_STREAM make them; the receiver tells the rate."""

from __future__ import annotations

from commbench.benchmarks.point_to_point import PointToPoint, messages
from commbench.core.case import Shape
from commbench.core.layout import Pair
from commbench.core.program import BufferSpec, Pattern, Program, View
from commbench.core.variables import Case

from .stream_runner import Read, Write, stream_runner


class Stream(PointToPoint):
    """A write of the message on each connection of the pair, on average: one that has room takes
    more of them."""

    name = "stream"
    axes = ("pair", "stream_threads")
    cache = "warm"  # the tools, too, write one buffer again and again

    def refusal(self, case: Case, size: int) -> str | None:
        if case.streams is None:
            return "a stream needs connections that carry bytes, not messages; use backend=tcp"
        if case.schedule == "rounds":
            return (
                "a stream has one pair at a time; use schedule=serial, or"
                " benchmark=[p2p_bandwidth] for pairs at once"
            )
        if case.cache == "rotate":
            return "a stream is written from one buffer; use cache=warm"
        return None

    def pair_buffers(self, case: Case, rank: int, pair: Pair) -> tuple[BufferSpec, ...]:
        names = [name for name, end in zip(("send", "recv"), pair, strict=True) if end == rank]
        return tuple(
            BufferSpec(name, case.elements, case.dtype, case.streams or 1) for name in names
        )

    def pair_program(self, case: Case, rank: int, pair: Pair) -> Program:
        first, second = pair
        slots = range(case.streams or 1)
        writes = (Write(View("send", slot), second) for slot in slots if rank == first)
        reads = (Read(View("recv", slot), first) for slot in slots if rank == second)
        buffers = self.pair_buffers(case, rank, pair)
        return Program(buffers, (*writes, *reads), runner=stream_runner)

    def shape(self, case: Case, size: int) -> Shape:
        """A sample is as many writes as there are connections."""
        writes = case.streams or 1
        return Shape(writes, writes * case.message_bytes, "receiver", "write", single=False)

    def _sent(self, case: Case, sender: int, salt: int) -> Pattern:
        return messages(sender, salt, case.elements, case.streams or 1)
