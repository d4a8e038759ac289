"""Every rank receives the blocks of all ranks, in rank order."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import Copy, Pattern, Program

from .collective import DATA, SOURCE, DividedCollective, block_of, source_and_data


class AllGather(DividedCollective):
    name = "all_gather"
    axes = ("in_place",)

    def program(self, case: Case, rank: int, size: int) -> Program:
        buffers = source_and_data(case, 1, size)
        if case.in_place:
            own = block_of(rank, case)
            return Program(buffers, (steps.AllGather(own, DATA),), (Copy(SOURCE, own),))
        return Program(buffers, (steps.AllGather(SOURCE, DATA),))

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.elements, (rank,))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.elements, range(size))
