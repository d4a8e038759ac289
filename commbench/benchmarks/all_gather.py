"""Every rank receives the blocks of all ranks, in rank order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import BufferSpec, Copy, Pattern, Program

from .collective import DATA, SOURCE, Collective, block_of


@dataclass(frozen=True)
class AllGather(Collective):
    name: ClassVar[str] = "all_gather"
    axes: ClassVar[tuple[str, ...]] = ("in_place",)

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        buffers = (BufferSpec("source", case.count, case.dtype), BufferSpec("data", size * case.count, case.dtype))
        if case.in_place:
            own = block_of(rank, case)
            return Program(buffers, (steps.AllGather(own, DATA),), (Copy(SOURCE, own),))
        return Program(buffers, (steps.AllGather(SOURCE, DATA),))

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: each rank receives all blocks but its own (nccl-tests doc/PERFORMANCE.md)."""
        return (size - 1) / size if size > 1 else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.count, (rank,))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.count, range(size))
