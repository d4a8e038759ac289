"""The time until the ranks of a layout have another communicator: of all of them, or of groups of
neighbours."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from commbench.benchmarks.collective import Collective
from commbench.core.case import Shape
from commbench.core.program import Group, Program
from commbench.core.variables import Case

from .steps import CloseCommunicator, FirstCall, OpenCommunicator

ON_HOST = ("host", "host_sync")  # the timers of the host's clock


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
        if case.timer not in ON_HOST:
            return (
                f"a library opens a communicator on the host, so timer={case.timer} would not time"
                " it; use timer=host_sync"
            )
        return None

    def program(self, case: Case, rank: int, size: int) -> Program:
        groups, colour = self.opened(case, rank, size)
        used = (FirstCall(groups, colour),)
        timed, untimed = (used, ()) if case.until == "first_call" else ((), used)
        return Program(
            steps=(OpenCommunicator(groups, colour), *timed),
            after=(*untimed, CloseCommunicator(groups, colour)),
        )

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, 0, "max_over_ranks", "communicator")

    def bus_factor(self, case: Case, size: int) -> float | None:
        """None: no payload is moved."""
        return None

    def opened(self, case: Case, rank: int, size: int) -> tuple[tuple[Group, ...], int | None]:
        """The groups of ranks, and the colour of this one; see Opening."""
        return neighbours(size, 1), None


class CommunicatorSplit(CommunicatorInit):
    """Groups differ by one rank at most."""

    name = "communicator_split"
    axes = ("until", "split")
    min_ranks = 2

    def refusal(self, case: Case, size: int) -> str | None:
        if (case.split or 1) > size:
            return f"{size} ranks can't be split into {case.split} groups; use split=1 to {size}"
        return super().refusal(case, size)

    def opened(self, case: Case, rank: int, size: int) -> tuple[tuple[Group, ...], int | None]:
        groups = neighbours(size, case.split or 1)
        return groups, next(number for number, group in enumerate(groups) if rank in group)


@lru_cache
def neighbours(size: int, parts: int) -> tuple[Group, ...]:
    """The same object for all ranks: of thousands, each program would have its own."""
    edges = [size * number // parts for number in range(parts + 1)]
    return tuple(tuple(range(begin, end)) for begin, end in pairwise(edges))
