"""Every rank gets the reduction of all ranks' buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench import contracts as c
from commbench.payload import contribution, reduced


@dataclass(frozen=True)
class AllReduce:
    name: ClassVar[str] = "all_reduce"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "reduction")
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 1

    def program(self, case: c.Case, rank: int, size: int) -> c.Program:
        source, data = c.View("source"), c.View("data")
        buffers = (c.BufferSpec("source", case.count, case.dtype), c.BufferSpec("data", case.count, case.dtype))
        operation = case.reduction or "sum"
        if case.in_place:  # a sum of its own result would grow by n each time: refill it, untimed
            return c.Program(buffers, (c.AllReduce(data, data, operation),), (c.Copy(source, data),))
        return c.Program(buffers, (c.AllReduce(source, data, operation),))

    def shape(self, case: c.Case, size: int) -> c.Shape:
        return c.Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """2(n-1)/n: each byte leaves and enters every rank but for its own share (nccl-tests doc/PERFORMANCE.md)."""
        return 2 * (size - 1) / size if size > 1 else None

    def fill(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        return contribution(rank, size, salt, case.reduction or "sum", case.count) if name == "source" else None

    def expected(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        return reduced(size, salt, case.reduction or "sum", case.count) if name == "data" else None
