"""Every rank sends a block of its own to every rank, itself too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case, Shape
from commbench.core.program import BufferSpec, Copy, Pattern, Program, View

from .blocks import SHARED, joined_blocks


@dataclass(frozen=True)
class AllToAll:
    name: ClassVar[str] = "all_to_all"
    axes: ClassVar[tuple[str, ...]] = ("in_place",)
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        source, data = View("source"), View("data")
        buffers = tuple(BufferSpec(name, size * case.count, case.dtype) for name in ("source", "data"))
        if case.in_place:
            return Program(buffers, (steps.AllToAll(data, data),), (Copy(source, data),))
        return Program(buffers, (steps.AllToAll(source, data),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all but the block for itself leaves each rank (nccl-tests doc/PERFORMANCE.md)."""
        return (size - 1) / size if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        to = (rank * size + receiver for receiver in range(size))
        return joined_blocks(SHARED, salt, case.count, to) if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        of = (sender * size + rank for sender in range(size))
        return joined_blocks(SHARED, salt, case.count, of) if name == "data" else None
