"""Every rank receives its block of the reduction of all ranks' buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case
from commbench.core.payload import block_start, concatenated, contribution, reduced
from commbench.core.program import BufferSpec, Copy, Pattern, Program

from .collective import DATA, SOURCE, Collective, block_of, reduction_of


@dataclass(frozen=True)
class ReduceScatter(Collective):
    name: ClassVar[str] = "reduce_scatter"
    axes: ClassVar[tuple[str, ...]] = ("in_place", "reduction")

    def blocks(self, size: int) -> int:
        return size

    def program(self, case: Case, rank: int, size: int) -> Program:
        reduction, source = reduction_of(case), BufferSpec("source", size * case.count, case.dtype)
        if case.in_place:
            buffers = (source, replace(source, name="data"))
            step = steps.ReduceScatter(DATA, block_of(rank, case), reduction)
            return Program(buffers, (step,), (Copy(SOURCE, DATA),))
        buffers = (source, BufferSpec("data", case.count, case.dtype))
        return Program(buffers, (steps.ReduceScatter(SOURCE, DATA, reduction),))

    def bus_factor(self, size: int) -> float | None:
        """(n-1)/n: all blocks but its own leave each rank (nccl-tests doc/PERFORMANCE.md)."""
        return (size - 1) / size if size > 1 else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        reduction = reduction_of(case)
        blocks = (contribution(rank, size, salt, reduction, case.count, block_start(index)) for index in range(size))
        return concatenated(list(blocks))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        """In place, the other blocks are still the input, which a library may not write to."""
        block = reduced(size, salt, reduction_of(case), case.count, block_start(rank))
        if not case.in_place:
            return block
        source = self.input(case, rank, size, salt).segments
        period = source[0].period * block.divisor  # an average divides the whole buffer's pattern: undo it for these
        unchanged = [replace(segment, period=period) for segment in source]
        return replace(block, segments=(*unchanged[:rank], *block.segments, *unchanged[rank + 1 :]))
