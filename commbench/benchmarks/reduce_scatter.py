"""Every rank receives its block of the reduction of all ranks' buffers."""

from __future__ import annotations

from dataclasses import replace

from commbench.core import program as steps
from commbench.core.payload import block_start, concatenated
from commbench.core.program import Copy, Pattern, Program
from commbench.core.variables import Case

from .collective import (
    DATA,
    SOURCE,
    DividedCollective,
    block_of,
    contribution_of,
    reduced_of,
    reduction_of,
    source_and_data,
)


class ReduceScatter(DividedCollective):
    name = "reduce_scatter"
    axes = ("in_place", "reduction", "payload")

    def program(self, case: Case, rank: int, size: int) -> Program:
        reduction = reduction_of(case)
        if case.in_place:
            step = steps.ReduceScatter(DATA, block_of(rank, case), reduction)
            return Program(source_and_data(case, size, size), (step,), (Copy(SOURCE, DATA),))
        return Program(source_and_data(case, size), (steps.ReduceScatter(SOURCE, DATA, reduction),))

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        starts = map(block_start, range(size))
        return concatenated([contribution_of(case, rank, size, salt, start) for start in starts])

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        """In place, the other blocks still have to be the input: a library must not write to
        them."""
        block = reduced_of(case, size, salt, block_start(rank))
        if not case.in_place:
            return block
        source = self.input(case, rank, size, salt).segments
        # an average divides the whole buffer's pattern: undo it for these
        period = source[0].period * block.divisor
        unchanged = [replace(segment, period=period) for segment in source]
        return replace(block, segments=(*unchanged[:rank], *block.segments, *unchanged[rank + 1 :]))
