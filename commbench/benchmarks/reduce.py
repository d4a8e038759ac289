"""The root receives the reduction of all ranks' buffers."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import contribution, reduced
from commbench.core.program import Copy, Pattern, Program

from .collective import DATA, SOURCE, Collective, reduction_of, root_of, source_and_data


class Reduce(Collective):
    name = "reduce"
    axes = ("in_place", "reduction", "root")

    def program(self, case: Case, rank: int, size: int) -> Program:
        root, reduction = root_of(case), reduction_of(case)
        buffers = source_and_data(case)
        if case.in_place:  # some libraries leave partial sums on the other ranks too, so the reset runs on all ranks
            return Program(buffers, (steps.Reduce(DATA, DATA, reduction, root),), (Copy(SOURCE, DATA),))
        return Program(buffers if rank == root else buffers[:1], (steps.Reduce(SOURCE, DATA, reduction, root),))

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return contribution(rank, size, salt, reduction_of(case), case.elements)

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        return reduced(size, salt, reduction_of(case), case.elements) if rank == root_of(case) else None
