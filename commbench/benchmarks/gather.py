"""The root receives the blocks of all ranks, in rank order."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import Copy, Pattern, Program

from .collective import DATA, SOURCE, DividedCollective, block_of, root_of, source_and_data


class Gather(DividedCollective):
    name = "gather"
    axes = ("in_place", "root")

    def program(self, case: Case, rank: int, size: int) -> Program:
        """Only the root's own block can be in place; the program of the other ranks is the same either way."""
        root, buffers = root_of(case), source_and_data(case, 1, size)
        if rank != root:
            return Program(buffers[:1], (steps.Gather(SOURCE, DATA, root),))
        if case.in_place:
            own = block_of(rank, case)
            return Program(buffers, (steps.Gather(own, DATA, root),), (Copy(SOURCE, own),))
        return Program(buffers, (steps.Gather(SOURCE, DATA, root),))

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.elements, (rank,))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.elements, range(size))
