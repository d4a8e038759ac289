"""all_to_all_v as a traffic matrix says."""

from __future__ import annotations

from dataclasses import replace

from commbench.benchmarks.all_to_all_v import TrafficMatrix, UnevenAllToAll
from commbench.core.errors import Unsupported
from commbench.core.payload import dtype
from commbench.core.variables import Case

from .matrices import recorded_traffic, traffic_elements


class AllToAllV(UnevenAllToAll):
    """As a traffic matrix says."""

    axes = ("traffic",)

    def variants(self, case: Case, size: int) -> tuple[Case, ...]:
        """With the name of its traffic, and the size that it has if it is one of bytes."""
        case = replace(case, traffic=_text(case))
        if not recorded_traffic(_text(case)).has_bytes:
            return (case,)
        try:
            elements = int(self.matrix(case, size).sum(axis=1).max())
        except Unsupported:  # the reason comes from `refusal`
            return (case,)
        message_bytes = elements * dtype(case.dtype).itemsize
        return (replace(case, elements=elements, message_bytes=message_bytes),)

    def refusal(self, case: Case, size: int) -> str | None:
        try:
            self.matrix(case, size)
        except Unsupported as error:
            return str(error)
        return None

    def matrix(self, case: Case, size: int) -> TrafficMatrix:
        return traffic_elements(_text(case), size, case.elements, dtype(case.dtype).itemsize)


def _text(case: Case) -> str:
    return case.traffic or "uniform"
