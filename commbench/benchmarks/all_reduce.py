"""Every rank receives the reduction of all ranks' buffers."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import contribution, reduced
from commbench.core.program import Copy, Pattern, Program

from .collective import DATA, SOURCE, Collective, reduction_of, source_and_data


class AllReduce(Collective):
    name = "all_reduce"
    axes = ("in_place", "reduction")

    def program(self, case: Case, rank: int, size: int) -> Program:
        buffers = source_and_data(case)
        if case.in_place:  # without the reset, a sum of its own result would grow n-fold with each repetition
            return Program(buffers, (steps.AllReduce(DATA, DATA, reduction_of(case)),), (Copy(SOURCE, DATA),))
        return Program(buffers, (steps.AllReduce(SOURCE, DATA, reduction_of(case)),))

    def bus_factor(self, size: int) -> float | None:
        """2(n-1)/n: each byte leaves and enters every rank but for its own share (nccl-tests doc/PERFORMANCE.md)."""
        return 2 * (size - 1) / size if size > 1 else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return contribution(rank, size, salt, reduction_of(case), case.elements)

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return reduced(size, salt, reduction_of(case), case.elements)
