"""Every rank sends a block of its own to every rank, itself too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench import contracts as c
from commbench.benchmarks.blocks import SHARED, joined_blocks


@dataclass(frozen=True)
class AllToAll:
    name: ClassVar[str] = "all_to_all"
    axes: ClassVar[tuple[str, ...]] = ("in_place",)
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: c.Case, rank: int, size: int) -> c.Program:
        source, data = c.View("source"), c.View("data")
        buffers = tuple(c.BufferSpec(name, size * case.count, case.dtype) for name in ("source", "data"))
        if case.in_place:
            return c.Program(buffers, (c.AllToAll(data, data),), (c.Copy(source, data),))
        return c.Program(buffers, (c.AllToAll(source, data),))

    def shape(self, case: c.Case, size: int) -> c.Shape:
        return c.Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all but the block for itself leaves each rank (nccl-tests doc/PERFORMANCE.md)."""
        return (size - 1) / size if size > 1 else None

    def fill(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        to = (rank * size + receiver for receiver in range(size))
        return joined_blocks(SHARED, salt, case.count, to) if name == "source" else None

    def expected(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        of = (sender * size + rank for sender in range(size))
        return joined_blocks(SHARED, salt, case.count, of) if name == "data" else None
