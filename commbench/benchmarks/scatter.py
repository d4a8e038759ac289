"""Every rank gets its block of the root's buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench import contracts as c
from commbench.benchmarks.blocks import SHARED, joined_blocks


@dataclass(frozen=True)
class Scatter:
    name: ClassVar[str] = "scatter"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "root")
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: c.Case, rank: int, size: int) -> c.Program:
        """Only the root's own block can be in place; the other ranks do the same either way."""
        root, source, data = case.root or 0, c.View("source"), c.View("data")
        whole, block = size * case.count, case.count
        if rank != root:
            return c.Program((c.BufferSpec("data", block, case.dtype),), (c.Scatter(source, data, root),))
        sent = c.BufferSpec("source", whole, case.dtype)
        if case.in_place:
            own = c.View("data", offset=root * block, count=block)
            buffers = (sent, c.BufferSpec("data", whole, case.dtype))
            return c.Program(buffers, (c.Scatter(data, own, root),), (c.Copy(source, data),))
        return c.Program((sent, c.BufferSpec("data", block, case.dtype)), (c.Scatter(source, data, root),))

    def shape(self, case: c.Case, size: int) -> c.Shape:
        return c.Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all but its own block of the whole leaves the root (nccl-tests src/scatter.cu)."""
        return (size - 1) / size if size > 1 else None

    def fill(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        return joined_blocks(SHARED, salt, case.count, range(size)) if name == "source" else None

    def expected(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        if name != "data":
            return None
        whole = case.in_place and rank == (case.root or 0)  # what it sends lies there too, and stays
        return joined_blocks(SHARED, salt, case.count, range(size) if whole else (rank,))
