"""The root receives the blocks of all ranks, in rank order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import BufferSpec, Copy, Pattern, Program

from .collective import DATA, SOURCE, Collective, block_of, root_of


@dataclass(frozen=True)
class Gather(Collective):
    name: ClassVar[str] = "gather"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "root")

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        """Only the root's own block can be in place; the program of the other ranks is the same either way."""
        root, source = root_of(case), BufferSpec("source", case.count, case.dtype)
        if rank != root:
            return Program((source,), (steps.Gather(SOURCE, DATA, root),))
        buffers = (source, BufferSpec("data", size * case.count, case.dtype))
        if case.in_place:
            own = block_of(rank, case)
            return Program(buffers, (steps.Gather(own, DATA, root),), (Copy(SOURCE, own),))
        return Program(buffers, (steps.Gather(SOURCE, DATA, root),))

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: the root receives all blocks but its own (nccl-tests src/gather.cu)."""
        return (size - 1) / size if size > 1 else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.count, (rank,))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.count, range(size))
