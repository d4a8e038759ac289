"""The root gets the reduction of all ranks' buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case, Shape
from commbench.core.payload import contribution, reduced
from commbench.core.program import BufferSpec, Copy, Pattern, Program, View


@dataclass(frozen=True)
class Reduce:
    name: ClassVar[str] = "reduce"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "reduction", "root")
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 1

    def program(self, case: Case, rank: int, size: int) -> Program:
        root, operation = case.root or 0, case.reduction or "sum"
        source, data = View("source"), View("data")
        sent, received = (BufferSpec(name, case.count, case.dtype) for name in ("source", "data"))
        if case.in_place:  # some libraries leave partial sums on the other ranks too: refill everywhere
            step = steps.Reduce(data, data, operation, root)
            return Program((sent, received), (step,), (Copy(source, data),))
        buffers = (sent, received) if rank == root else (sent,)
        return Program(buffers, (steps.Reduce(source, data, operation, root),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """1: every byte leaves each other rank once and the reduced one enters the root (nccl-tests src/reduce.cu)."""
        return 1.0 if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return contribution(rank, size, salt, case.reduction or "sum", case.count) if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name != "data" or rank != (case.root or 0):
            return None
        return reduced(size, salt, case.reduction or "sum", case.count)
