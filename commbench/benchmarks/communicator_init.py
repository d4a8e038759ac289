"""The time until the ranks of a layout have another communicator, of all of them."""

from __future__ import annotations

from typing import ClassVar

from commbench.core.case import Shape
from commbench.core.opening import CloseCommunicator, FirstCall, OpenCommunicator
from commbench.core.program import Program
from commbench.core.variables import Case

from .collective import Collective

Groups = tuple[tuple[int, ...], ...]


class CommunicatorInit(Collective):
    """Each repetition opens one and closes it, which is not timed. A case that ends when it is
    open calls it once afterwards, so that one that does not work is an error."""

    name = "communicator_init"
    axes: ClassVar[tuple[str, ...]] = ("until",)

    def blocks(self, size: int) -> int:
        return 0

    def refusal(self, case: Case, size: int) -> str | None:
        if case.node is not None:
            return f"{self.name} is of a whole layout; use nodes=all and layout=1xN"
        if case.timed is not None:
            return "opening a communicator has no computation beside it; use overlap=none"
        return None

    def program(self, case: Case, rank: int, size: int) -> Program:
        groups = self.opened_groups(case, size)
        used = (FirstCall(groups),)
        timed, untimed = (used, ()) if case.until == "first_call" else ((), used)
        return Program(
            steps=(OpenCommunicator(groups), *timed), after=(*untimed, CloseCommunicator(groups))
        )

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, 0, "max_over_ranks", "communicator")

    def bus_factor(self, case: Case, size: int) -> float | None:
        """None: no payload is moved."""
        return None

    def opened_groups(self, case: Case, size: int) -> Groups:
        """None: one communicator, which is not part of another one."""
        return ()
