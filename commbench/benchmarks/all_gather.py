"""Every rank gets the blocks of all ranks, in rank order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case, Shape
from commbench.core.program import BufferSpec, Copy, Pattern, Program, View

from .blocks import SHARED, joined_blocks


@dataclass(frozen=True)
class AllGather:
    name: ClassVar[str] = "all_gather"
    axes: ClassVar[tuple[str, ...]] = ("in_place",)
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        source, data = View("source"), View("data")
        sent = BufferSpec("source", case.count, case.dtype)
        received = BufferSpec("data", size * case.count, case.dtype)
        if case.in_place:
            own = View("data", offset=rank * case.count, count=case.count)
            return Program((sent, received), (steps.AllGather(own, data),), (Copy(source, own),))
        return Program((sent, received), (steps.AllGather(source, data),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all but its own block of the whole enters each rank (nccl-tests doc/PERFORMANCE.md)."""
        return (size - 1) / size if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return joined_blocks(SHARED, salt, case.count, (rank,)) if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return joined_blocks(SHARED, salt, case.count, range(size)) if name == "data" else None
