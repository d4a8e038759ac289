"""Every rank gets its block of the root's buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case, Shape
from commbench.core.program import BufferSpec, Copy, Pattern, Program, View

from .blocks import SHARED, joined_blocks


@dataclass(frozen=True)
class Scatter:
    name: ClassVar[str] = "scatter"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "root")
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        """Only the root's own block can be in place; the other ranks do the same either way."""
        root, source, data = case.root or 0, View("source"), View("data")
        whole, block = size * case.count, case.count
        if rank != root:
            return Program((BufferSpec("data", block, case.dtype),), (steps.Scatter(source, data, root),))
        sent = BufferSpec("source", whole, case.dtype)
        if case.in_place:
            own = View("data", offset=root * block, count=block)
            buffers = (sent, BufferSpec("data", whole, case.dtype))
            return Program(buffers, (steps.Scatter(data, own, root),), (Copy(source, data),))
        return Program((sent, BufferSpec("data", block, case.dtype)), (steps.Scatter(source, data, root),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all but its own block of the whole leaves the root (nccl-tests src/scatter.cu)."""
        return (size - 1) / size if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return joined_blocks(SHARED, salt, case.count, range(size)) if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name != "data":
            return None
        whole = case.in_place and rank == (case.root or 0)  # what it sends lies there too, and stays
        return joined_blocks(SHARED, salt, case.count, range(size) if whole else (rank,))
