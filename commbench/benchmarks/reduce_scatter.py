"""Every rank gets its block of the reduction of all ranks' buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case, Shape
from commbench.core.payload import concatenated, contribution, reduced
from commbench.core.program import BufferSpec, Copy, Pattern, Program, View

from .blocks import shift


@dataclass(frozen=True)
class ReduceScatter:
    name: ClassVar[str] = "reduce_scatter"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "reduction")
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        source, data, operation = View("source"), View("data"), case.reduction or "sum"
        sent = BufferSpec("source", size * case.count, case.dtype)
        if case.in_place:
            own = View("data", offset=rank * case.count, count=case.count)
            buffers = (sent, replace(sent, name="data"))
            return Program(buffers, (steps.ReduceScatter(data, own, operation),), (Copy(source, data),))
        buffers = (sent, BufferSpec("data", case.count, case.dtype))
        return Program(buffers, (steps.ReduceScatter(source, data, operation),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all but its own block of the whole leaves each rank (nccl-tests doc/PERFORMANCE.md)."""
        return (size - 1) / size if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return _sent(case, rank, size, salt) if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name != "data":
            return None
        own = reduced(size, salt, case.reduction or "sum", case.count, shift(rank))
        return _among_the_sent(own, rank, _sent(case, rank, size, salt)) if case.in_place else own


def _sent(case: Case, rank: int, size: int, salt: int) -> Pattern:
    operation = case.reduction or "sum"
    return concatenated([contribution(rank, size, salt, operation, case.count, shift(one)) for one in range(size)])


def _among_the_sent(own: Pattern, rank: int, sent: Pattern) -> Pattern:
    """In place the other blocks are input, which a library may not write; an average's divisor is undone for them."""
    period = sent.segments[0].period * own.divisor
    kept = [replace(segment, period=period) for segment in sent.segments]
    return replace(own, segments=(*kept[:rank], *own.segments, *kept[rank + 1 :]))
