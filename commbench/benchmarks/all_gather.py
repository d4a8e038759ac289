"""Every rank receives the blocks of all ranks, in rank order."""

from __future__ import annotations

from typing import ClassVar

from commbench.core import program as steps
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import Pattern, Program
from commbench.core.variables import Case

from .collective import DATA, DividedCollective, block_of, input_and_reset, source_and_data


class AllGather(DividedCollective):
    name = "all_gather"
    axes: ClassVar[tuple[str, ...]] = ("in_place",)

    def program(self, case: Case, rank: int, size: int) -> Program:
        send, reset = input_and_reset(case, block_of(rank, case))
        return Program(source_and_data(case, 1, size), (steps.AllGather(send, DATA),), reset)

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.elements, (rank,))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(SHARED, salt, case.elements, range(size))
