"""The root receives the reduction of all ranks' buffers."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.program import Pattern, Program
from commbench.core.variables import Case

from .collective import (
    DATA,
    Collective,
    contribution_of,
    input_and_reset,
    reduced_of,
    reduction_of,
    root_of,
    source_and_data,
)


class Reduce(Collective):
    name = "reduce"
    axes = ("in_place", "reduction", "root", "payload")

    def program(self, case: Case, rank: int, size: int) -> Program:
        """In place all ranks need `data` and the reset: some libraries leave partial sums on the
        other ranks, too."""
        root = root_of(case)
        buffers = source_and_data(case)
        send, reset = input_and_reset(case)
        step = steps.Reduce(send, DATA, reduction_of(case), root)
        return Program(buffers if rank == root or case.in_place else buffers[:1], (step,), reset)

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return contribution_of(case, rank, size, salt)

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        return reduced_of(case, size, salt) if rank == root_of(case) else None
