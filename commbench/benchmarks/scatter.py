"""Every rank receives its block of the root's buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import BufferSpec, Copy, Pattern, Program

from .collective import DATA, SOURCE, Collective, block_of, root_of


@dataclass(frozen=True)
class Scatter(Collective):
    name: ClassVar[str] = "scatter"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "root")

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        """Only the root's own block can be in place; the program of the other ranks is the same either way."""
        root, block = root_of(case), BufferSpec("data", case.count, case.dtype)
        if rank != root:
            return Program((block,), (steps.Scatter(SOURCE, DATA, root),))
        source = BufferSpec("source", size * case.count, case.dtype)
        if case.in_place:
            buffers = (source, BufferSpec("data", size * case.count, case.dtype))
            return Program(buffers, (steps.Scatter(DATA, block_of(root, case), root),), (Copy(SOURCE, DATA),))
        return Program((source, block), (steps.Scatter(SOURCE, DATA, root),))

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all blocks but its own leave the root (nccl-tests src/scatter.cu)."""
        return (size - 1) / size if size > 1 else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.count, range(size))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        """In place, the root's `data` is also what it sends, and must not change."""
        whole = case.in_place and rank == root_of(case)
        return joined_blocks(SHARED, salt, case.count, range(size) if whole else (rank,))
