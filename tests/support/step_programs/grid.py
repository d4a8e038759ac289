"""A benchmark as those of jobs: the ranks of a grid reduce in their row and gather in their column
at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commbench.benchmarks.collective import Collective
from commbench.core.payload import contribution, reduced
from commbench.core.program import (
    AllGather,
    AllReduce,
    BufferSpec,
    Copy,
    Group,
    In,
    Pattern,
    Program,
    Start,
    View,
    WaitAll,
)
from commbench.core.variables import Case

COLUMNS = 2


@dataclass(frozen=True)
class Grid(Collective):
    """`data` is reduced in a row, `gathered` has the blocks of a column."""

    name = "grid"

    def groups(self, case: Case, size: int) -> Sequence[Group]:
        ranks = np.arange(size).reshape(-1, COLUMNS)
        return [tuple(group) for group in (*ranks.tolist(), *ranks.T.tolist())]

    def program(self, case: Case, rank: int, size: int) -> Program:
        row, column = (group for group in self.groups(case, size) if rank in group)
        buffers = (
            BufferSpec("source", case.elements, case.dtype),
            BufferSpec("data", case.elements, case.dtype),
            BufferSpec("gathered", case.elements * len(column), case.dtype),
        )
        reduce = In(row, AllReduce(View("data"), View("data"), "sum"))
        gather = In(column, AllGather(View("source"), View("gathered")))
        steps = (Start(reduce, 0), Start(gather, 1), WaitAll((0, 1)))
        return Program(buffers, steps, (Copy(View("source"), View("data")),))

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        own = contribution(rank % COLUMNS, COLUMNS, salt, "sum", case.elements)
        return own if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        if name == "data":
            return reduced(COLUMNS, salt, "sum", case.elements)
        own = contribution(rank % COLUMNS, COLUMNS, salt, "sum", case.elements)
        rows = size // COLUMNS
        return Pattern(own.segments * rows) if name == "gathered" else None
