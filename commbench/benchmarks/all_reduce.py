"""Every rank gets the reduction of all ranks' buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case, Shape
from commbench.core.payload import contribution, reduced
from commbench.core.program import BufferSpec, Copy, Pattern, Program, View


@dataclass(frozen=True)
class AllReduce:
    name: ClassVar[str] = "all_reduce"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "reduction")
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 1

    def program(self, case: Case, rank: int, size: int) -> Program:
        source, data = View("source"), View("data")
        buffers = (BufferSpec("source", case.count, case.dtype), BufferSpec("data", case.count, case.dtype))
        operation = case.reduction or "sum"
        if case.in_place:  # a sum of its own result would grow by n each time: refill it, untimed
            return Program(buffers, (steps.AllReduce(data, data, operation),), (Copy(source, data),))
        return Program(buffers, (steps.AllReduce(source, data, operation),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """2(n-1)/n: each byte leaves and enters every rank but for its own share (nccl-tests doc/PERFORMANCE.md)."""
        return 2 * (size - 1) / size if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return contribution(rank, size, salt, case.reduction or "sum", case.count) if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return reduced(size, salt, case.reduction or "sum", case.count) if name == "data" else None
