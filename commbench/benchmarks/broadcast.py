"""Every rank gets the root's buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core import program as steps
from commbench.core.case import Case, Shape
from commbench.core.payload import message
from commbench.core.program import BufferSpec, Pattern, Program, View


@dataclass(frozen=True)
class Broadcast:
    name: ClassVar[str] = "broadcast"
    axes: ClassVar[tuple[str, ...]] = ("root",)
    cache: ClassVar[str] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 1

    def program(self, case: Case, rank: int, size: int) -> Program:
        buffers = (BufferSpec("data", case.count, case.dtype),)
        return Program(buffers, (steps.Broadcast(View("data"), case.root or 0),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks")

    def bus_factor(self, size: int) -> float | None:
        """1: every byte leaves the root once and enters every other rank once (nccl-tests src/broadcast.cu)."""
        return 1.0 if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        root = case.root or 0
        return message(root, salt, case.count) if rank == root else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return message(case.root or 0, salt, case.count)
