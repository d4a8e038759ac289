"""Every rank sends a block of its own length to every rank, as a traffic matrix says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from commbench.core import program as steps
from commbench.core.payload import SHARED, block_start, concatenated, dtype, message
from commbench.core.program import BufferSpec, Pattern, Program
from commbench.core.variables import Case

from .collective import DATA, SOURCE, Collective

TrafficMatrix = NDArray[np.int64]  # [senders, receivers]


class UnevenAllToAll(Collective):
    """The size of a case is what the rank that sends most sends, to itself included."""

    name = "all_to_all_v"
    min_ranks = 2

    def matrix(self, case: Case, size: int) -> TrafficMatrix:
        """Elements from each rank to each [senders, receivers]."""
        raise NotImplementedError

    def bus_factor(self, case: Case, size: int) -> float | None:
        """What the busiest rank sends to or receives from others, over the size of the case
        (PARAM's busbw of all_to_allv); None if that is nothing."""
        return int(rank_loads(self.matrix(case, size)).max()) / case.elements or None

    def traffic_bytes(self, case: Case, size: int) -> TrafficMatrix:
        return self.matrix(case, size) * dtype(case.dtype).itemsize

    def program(self, case: Case, rank: int, size: int) -> Program:
        matrix = self.matrix(case, size)
        sent = tuple(matrix[rank].tolist())
        received = tuple(matrix[:, rank].tolist())
        return Program(
            self.buffers(case, rank, size), (steps.AllToAllV(SOURCE, DATA, sent, received),)
        )

    def buffers(self, case: Case, rank: int, size: int) -> tuple[BufferSpec, ...]:
        """At least one element, also where a rank sends or receives nothing: an empty buffer has no
        address."""
        matrix = self.matrix(case, size)
        sent = int(matrix[rank].sum())
        received = int(matrix[:, rank].sum())
        return (
            BufferSpec("source", max(1, sent), case.dtype),
            BufferSpec("data", max(1, received), case.dtype),
        )

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        counts = self.matrix(case, size)[rank]
        return _blocks(salt, {rank * size + to: int(count) for to, count in enumerate(counts)})

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        counts = self.matrix(case, size)[:, rank]
        return _blocks(salt, {by * size + rank: int(count) for by, count in enumerate(counts)})


def _blocks(salt: int, counts: dict[int, int]) -> Pattern | None:
    """Blocks of these lengths by their index, without the empty ones; None without elements."""
    parts = [
        message(SHARED, salt, count, block_start(index)) for index, count in counts.items() if count
    ]
    return concatenated(parts) if parts else None


def rank_loads(matrix: TrafficMatrix) -> TrafficMatrix:
    """What each rank sends to or receives from others, whichever is more."""
    others = matrix - np.diag(np.diag(matrix))
    return np.asarray(np.maximum(others.sum(axis=1), others.sum(axis=0)))
