"""No rank goes on before all have come: the one operation without a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case, Shape
from commbench.core.program import Pattern, Program


@dataclass(frozen=True)
class Barrier:
    name: ClassVar[str] = "barrier"
    axes: ClassVar[tuple[str, ...]] = ()
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 0

    def program(self, case: Case, rank: int, size: int) -> Program:
        return Program(steps=(steps.Barrier(),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, 0, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """None: there are no bytes to divide by a time."""
        return None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return None
