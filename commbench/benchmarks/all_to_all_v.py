"""Every rank sends a block of its own length to every rank, as a traffic matrix says."""

from __future__ import annotations

from dataclasses import replace

from commbench.core import program as steps
from commbench.core.errors import Unsupported
from commbench.core.payload import SHARED, block_start, concatenated, dtype, message
from commbench.core.program import BufferSpec, Pattern, Program
from commbench.core.variables import Case

from .collective import DATA, SOURCE, Collective
from .expert_traffic import TrafficMatrix
from .traffic import rank_loads, recorded_traffic, traffic_elements


class AllToAllV(Collective):
    """The size of a case is what the rank that sends most sends, to itself included."""

    name = "all_to_all_v"
    axes = ("traffic",)
    min_ranks = 2

    def sized(self, case: Case, size: int) -> Case:
        if not recorded_traffic(_text(case)).has_bytes:
            return case
        try:
            elements = int(_elements(case, size).sum(axis=1).max())
        except Unsupported:  # the reason comes from `refusal`
            return case
        return replace(case, elements=elements, message_bytes=elements * dtype(case.dtype).itemsize)

    def refusal(self, case: Case, size: int) -> str | None:
        try:
            _elements(case, size)
        except Unsupported as error:
            return str(error)
        return None

    def bus_factor(self, case: Case, size: int) -> float | None:
        """What the busiest rank sends to or receives from others, over the size of the case
        (PARAM's busbw of all_to_allv); None if that is nothing."""
        return int(rank_loads(_elements(case, size)).max()) / case.elements or None

    def traffic_bytes(self, case: Case, size: int) -> TrafficMatrix:
        return _elements(case, size) * dtype(case.dtype).itemsize

    def program(self, case: Case, rank: int, size: int) -> Program:
        matrix = _elements(case, size)
        sent = tuple(matrix[rank].tolist())
        received = tuple(matrix[:, rank].tolist())
        return Program(
            self.buffers(case, rank, size), (steps.AllToAllV(SOURCE, DATA, sent, received),)
        )

    def buffers(self, case: Case, rank: int, size: int) -> tuple[BufferSpec, ...]:
        """At least one element, also where a rank sends or receives nothing: an empty buffer has no
        address."""
        matrix = _elements(case, size)
        sent = int(matrix[rank].sum())
        received = int(matrix[:, rank].sum())
        return (
            BufferSpec("source", max(1, sent), case.dtype),
            BufferSpec("data", max(1, received), case.dtype),
        )

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        counts = _elements(case, size)[rank]
        return _blocks(salt, {rank * size + to: int(count) for to, count in enumerate(counts)})

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        counts = _elements(case, size)[:, rank]
        return _blocks(salt, {by * size + rank: int(count) for by, count in enumerate(counts)})


def _blocks(salt: int, counts: dict[int, int]) -> Pattern | None:
    """Blocks of these lengths by their index, without the empty ones; None without elements."""
    parts = [
        message(SHARED, salt, count, block_start(index)) for index, count in counts.items() if count
    ]
    return concatenated(parts) if parts else None


def _elements(case: Case, size: int) -> TrafficMatrix:
    return traffic_elements(_text(case), size, case.elements, dtype(case.dtype).itemsize)


def _text(case: Case) -> str:
    return case.traffic or "uniform"
