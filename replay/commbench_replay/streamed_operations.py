"""Operations whose blocks follow one another in the stream of their sender, so that the input of a
small one is the beginning of that of a large one, and they can share it.

Blocks of a multiple of program.PERIOD elements are alike: the ordinary operations, whose blocks
begin at places far from each other, see them exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commbench.benchmarks.all_to_all import AllToAll
from commbench.benchmarks.all_to_all_v import TrafficMatrix, UnevenAllToAll
from commbench.benchmarks.collective import reduction_of
from commbench.benchmarks.reduce_scatter import ReduceScatter
from commbench.benchmarks.scatter import Scatter
from commbench.core.payload import (
    SHARED,
    block_start,
    concatenated,
    contribution,
    message,
    reduced,
)
from commbench.core.program import Pattern
from commbench.core.variables import Case


class StreamedReduceScatter(ReduceScatter):
    """Not in place."""

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return contribution(rank, size, salt, reduction_of(case), size * case.elements)

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        begin = rank * case.elements
        return reduced(size, salt, reduction_of(case), case.elements, begin)


class StreamedScatter(Scatter):
    """Not in place."""

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return message(SHARED, salt, size * case.elements)

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return message(SHARED, salt, case.elements, rank * case.elements)


class StreamedAllToAll(AllToAll):
    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return message(SHARED, salt, size * case.elements, block_start(rank))

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        begin = rank * case.elements
        blocks = [
            message(SHARED, salt, case.elements, block_start(sender) + begin)
            for sender in range(size)
        ]
        return concatenated(blocks)


@dataclass(frozen=True)
class StreamedAllToAllV(UnevenAllToAll):
    """`counts`: elements from each rank to each."""

    counts: tuple[tuple[int, ...], ...]

    def matrix(self, case: Case, size: int) -> TrafficMatrix:
        return self._matrix

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        sent = int(self._matrix[rank].sum())
        return message(SHARED, salt, sent, block_start(rank)) if sent else None

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        received = self._matrix[:, rank].tolist()
        begins = self._matrix[:, :rank].sum(axis=1).tolist()
        blocks = [
            message(SHARED, salt, count, block_start(sender) + begin)
            for sender, (count, begin) in enumerate(zip(received, begins, strict=True))
            if count
        ]
        return concatenated(blocks) if blocks else None

    @cached_property
    def _matrix(self) -> TrafficMatrix:
        return np.array(self.counts, dtype=np.int64)
