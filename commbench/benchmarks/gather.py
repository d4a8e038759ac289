"""The root receives the blocks of all ranks, in rank order."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.program import Program
from commbench.core.variables import Case

from .all_gather import AllGather
from .collective import DATA, SOURCE, block_of, input_and_reset, root_of, source_and_data


class Gather(AllGather):
    """Moves the blocks of an all_gather, but only to the root."""

    name = "gather"
    axes = ("in_place", "root")

    def program(self, case: Case, rank: int, size: int) -> Program:
        """Only the root's own block can be in place; the program of the other ranks is the same
        either way."""
        root = root_of(case)
        buffers = source_and_data(case, 1, size)
        if rank != root:
            return Program(buffers[:1], (steps.Gather(SOURCE, DATA, root),))
        send, reset = input_and_reset(case, block_of(rank, case))
        return Program(buffers, (steps.Gather(send, DATA, root),), reset)
