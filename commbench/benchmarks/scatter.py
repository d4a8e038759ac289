"""Every rank receives its block of the root's buffer."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import Copy, Pattern, Program
from commbench.core.variables import Case

from .collective import DATA, SOURCE, DividedCollective, block_of, root_of, source_and_data


class Scatter(DividedCollective):
    name = "scatter"
    axes = ("in_place", "root")

    def program(self, case: Case, rank: int, size: int) -> Program:
        """Only the root's own block can be in place; the program of the other ranks is the same
        either way."""
        root = root_of(case)
        buffers = source_and_data(case, size)
        if rank != root:
            return Program(buffers[1:], (steps.Scatter(SOURCE, DATA, root),))
        if case.in_place:
            step = steps.Scatter(DATA, block_of(root, case), root)
            return Program(source_and_data(case, size, size), (step,), (Copy(SOURCE, DATA),))
        return Program(buffers, (steps.Scatter(SOURCE, DATA, root),))

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.elements, range(size))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        """In place, the root's `data` is also what it sends, and must not change."""
        whole = case.in_place and rank == root_of(case)
        return joined_blocks(SHARED, salt, case.elements, range(size) if whole else (rank,))
