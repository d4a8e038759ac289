"""Every rank sends a different block to every rank, including itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import BufferSpec, Copy, Pattern, Program

from .collective import DATA, SOURCE, Collective


@dataclass(frozen=True)
class AllToAll(Collective):
    name: ClassVar[str] = "all_to_all"
    axes: ClassVar[tuple[str, ...]] = ("in_place",)

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        buffers = tuple(BufferSpec(name, size * case.count, case.dtype) for name in ("source", "data"))
        if case.in_place:
            return Program(buffers, (steps.AllToAll(DATA, DATA),), (Copy(SOURCE, DATA),))
        return Program(buffers, (steps.AllToAll(SOURCE, DATA),))

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all blocks but the one for itself leave each rank (nccl-tests doc/PERFORMANCE.md)."""
        return (size - 1) / size if size > 1 else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.count, (rank * size + receiver for receiver in range(size)))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.count, (sender * size + rank for sender in range(size)))
