"""Every rank gets its block of the reduction of all ranks' buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from commbench import contracts as c
from commbench.benchmarks.blocks import shift
from commbench.payload import concatenated, contribution, reduced


@dataclass(frozen=True)
class ReduceScatter:
    name: ClassVar[str] = "reduce_scatter"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "reduction")
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: c.Case, rank: int, size: int) -> c.Program:
        source, data, operation = c.View("source"), c.View("data"), case.reduction or "sum"
        sent = c.BufferSpec("source", size * case.count, case.dtype)
        if case.in_place:
            own = c.View("data", offset=rank * case.count, count=case.count)
            buffers = (sent, replace(sent, name="data"))
            return c.Program(buffers, (c.ReduceScatter(data, own, operation),), (c.Copy(source, data),))
        buffers = (sent, c.BufferSpec("data", case.count, case.dtype))
        return c.Program(buffers, (c.ReduceScatter(source, data, operation),))

    def shape(self, case: c.Case, size: int) -> c.Shape:
        return c.Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all but its own block of the whole leaves each rank (nccl-tests doc/PERFORMANCE.md)."""
        return (size - 1) / size if size > 1 else None

    def fill(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        return _sent(case, rank, size, salt) if name == "source" else None

    def expected(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        if name != "data":
            return None
        own = reduced(size, salt, case.reduction or "sum", case.count, shift(rank))
        return _among_the_sent(own, rank, _sent(case, rank, size, salt)) if case.in_place else own


def _sent(case: c.Case, rank: int, size: int, salt: int) -> c.Pattern:
    operation = case.reduction or "sum"
    return concatenated([contribution(rank, size, salt, operation, case.count, shift(one)) for one in range(size)])


def _among_the_sent(own: c.Pattern, rank: int, sent: c.Pattern) -> c.Pattern:
    """In place the other blocks are input, which a library may not write; an average's divisor is undone for them."""
    period = sent.segments[0].period * own.divisor
    kept = [replace(segment, period=period) for segment in sent.segments]
    return replace(own, segments=(*kept[:rank], *own.segments, *kept[rank + 1 :]))
