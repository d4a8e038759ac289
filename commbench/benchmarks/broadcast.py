"""Every rank receives the root's buffer."""

from __future__ import annotations

from commbench.core import program as steps
from commbench.core.payload import message
from commbench.core.program import BufferSpec, Pattern, Program
from commbench.core.variables import Case

from .collective import DATA, Collective, root_of


class Broadcast(Collective):
    """The only buffer, `data`, is sent by the root and received by the others."""

    name = "broadcast"
    axes = ("root",)

    def program(self, case: Case, rank: int, size: int) -> Program:
        buffers = (BufferSpec("data", case.elements, case.dtype),)
        return Program(buffers, (steps.Broadcast(DATA, root_of(case)),))

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.result(case, rank, size, salt) if rank == root_of(case) else None

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return message(root_of(case), salt, case.elements)
