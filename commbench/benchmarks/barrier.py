"""No rank goes on before all have come: the one operation without a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench import contracts as c


@dataclass(frozen=True)
class Barrier:
    name: ClassVar[str] = "barrier"
    axes: ClassVar[tuple[str, ...]] = ()
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 0

    def program(self, case: c.Case, rank: int, size: int) -> c.Program:
        return c.Program(steps=(c.Barrier(),))

    def shape(self, case: c.Case, size: int) -> c.Shape:
        return c.Shape(1, 0, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """None: there are no bytes to divide by a time."""
        return None

    def fill(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        return None

    def expected(self, case: c.Case, rank: int, size: int, name: str, salt: int) -> c.Pattern | None:
        return None
