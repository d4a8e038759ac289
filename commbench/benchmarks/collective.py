"""What the collective operations have in common."""

from __future__ import annotations

from typing import ClassVar

from commbench.core.case import Case, Shape
from commbench.core.program import Pattern, View

SOURCE, DATA = View("source"), View("data")  # the input, never written to, and the buffer that is checked


class Collective:
    """One call per sample on all ranks. `input` and `result` are the contents of `source` and `data`.

    In place, the untimed reset copies the input into `data` before each call.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 1

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks")

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.input(case, rank, size, salt) if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.result(case, rank, size, salt) if name == "data" else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        """What this rank contributes; None if nothing."""
        return None

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        """What `data` must hold after the call; None where it is not defined."""
        return None


def block_of(rank: int, case: Case) -> View:
    """The block of `rank` in `data`, where that buffer holds one block per rank."""
    return View("data", offset=rank * case.count, count=case.count)


def root_of(case: Case) -> int:
    return case.root or 0


def reduction_of(case: Case) -> str:
    return case.reduction or "sum"
