"""Every rank sends a different block to every rank, including itself."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.payload import SHARED, joined_blocks
from commbench.core.program import Pattern, Program
from commbench.core.variables import Case

from .collective import DATA, DividedCollective, input_and_reset, source_and_data


class AllToAll(DividedCollective):
    name = "all_to_all"
    axes = ("in_place",)

    def program(self, case: Case, rank: int, size: int) -> Program:
        send, reset = input_and_reset(case)
        return Program(source_and_data(case, size, size), (steps.AllToAll(send, DATA),), reset)

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(
            SHARED, salt, case.elements, (rank * size + receiver for receiver in range(size))
        )

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return joined_blocks(
            SHARED, salt, case.elements, (sender * size + rank for sender in range(size))
        )
