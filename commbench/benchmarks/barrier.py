"""No rank continues before all ranks have arrived: the only operation without a message."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.program import Program
from commbench.core.variables import Case

from .collective import Collective


class Barrier(Collective):
    name = "barrier"

    def blocks(self, size: int) -> int:
        return 0

    def program(self, case: Case, rank: int, size: int) -> Program:
        return Program(steps=(steps.Barrier(),))

    def bus_factor(self, case: Case, size: int) -> float | None:
        """None: no payload is moved."""
        return None
