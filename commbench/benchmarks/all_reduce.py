"""Every rank receives the reduction of all ranks' buffers."""

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
    source_and_data,
)


class AllReduce(Collective):
    name = "all_reduce"
    axes = ("in_place", "reduction", "payload")

    def program(self, case: Case, rank: int, size: int) -> Program:
        # without the reset, a sum would grow n-fold with each repetition
        send, reset = input_and_reset(case)
        return Program(
            source_and_data(case), (steps.AllReduce(send, DATA, reduction_of(case)),), reset
        )

    def bus_factor(self, case: Case, size: int) -> float | None:
        """2(n-1)/n: each byte leaves and enters every rank, except its own share (nccl-tests
        doc/PERFORMANCE.md)."""
        return 2 * (size - 1) / size if size > 1 else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return contribution_of(case, rank, size, salt)

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return reduced_of(case, size, salt)
