"""Benchmarks as a user writes them: of several steps, and under names that no table knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from commbench.benchmarks.all_reduce import AllReduce as AllReduceBenchmark
from commbench.core.program import AllGather, AllReduce, Program, Step, View
from commbench.core.variables import Case

OWN = View("data", 0, 0, 1)
REDUCE = AllReduce(View("data"), View("data"), "sum")
GATHER = AllGather(OWN, View("data"))


@dataclass(frozen=True)
class Steps(AllReduceBenchmark):
    """These steps on every rank, on the buffers of an all_reduce."""

    name = "two_steps"
    steps: tuple[Step, ...] = (REDUCE, GATHER)

    def program(self, case: Case, rank: int, size: int) -> Program:
        return replace(super().program(case, rank, size), steps=self.steps)
