"""The root receives the reduction of all ranks' buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import contribution, reduced
from commbench.core.program import BufferSpec, Copy, Pattern, Program

from .collective import DATA, SOURCE, Collective, reduction_of, root_of


@dataclass(frozen=True)
class Reduce(Collective):
    name: ClassVar[str] = "reduce"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "reduction", "root")

    def program(self, case: Case, rank: int, size: int) -> Program:
        root, reduction = root_of(case), reduction_of(case)
        source, data = (BufferSpec(name, case.count, case.dtype) for name in ("source", "data"))
        if case.in_place:  # some libraries leave partial sums on the other ranks too, so the reset runs on all ranks
            return Program((source, data), (steps.Reduce(DATA, DATA, reduction, root),), (Copy(SOURCE, DATA),))
        buffers = (source, data) if rank == root else (source,)
        return Program(buffers, (steps.Reduce(SOURCE, DATA, reduction, root),))

    def bus_factor(self, size: int) -> float | None:
        """1: every byte leaves each other rank once and the reduced one enters the root (nccl-tests src/reduce.cu)."""
        return 1.0 if size > 1 else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return contribution(rank, size, salt, reduction_of(case), case.count)

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        return reduced(size, salt, reduction_of(case), case.count) if rank == root_of(case) else None
