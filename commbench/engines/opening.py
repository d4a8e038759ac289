"""Steps that open communicators, as calls of what a backend provides for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from commbench.core.opening import CloseCommunicator, FirstCall, OpenCommunicator, Opening
from commbench.core.program import Program, Step, operation_of
from commbench.core.variables import Case

from .lowered import Call

ON_HOST = ("host", "host_sync")  # the timers of the host's clock


class Opener(Protocol):
    """Opens communicators beside that of a case, one at a time, and keeps the open one."""

    def opening(self, step: Opening) -> Call:
        """The call that opens one for these groups. Raises Unsupported."""

    def first_call(self) -> None:
        """A barrier of the open one."""

    def close(self) -> None:
        """All ranks call it, after the first call of each."""


def with_opener(lower: Callable[[Step], Call], opener: Opener) -> Callable[[Step], Call]:
    """Lower the steps that open communicators to calls of `opener`, and all others as before."""

    def call(step: Step) -> Call:
        match step:
            case OpenCommunicator():
                return opener.opening(step)
            case FirstCall():
                return Call(opener.first_call)
            case CloseCommunicator():
                return Call(opener.close)
            case _:
                return lower(step)

    return call


def opens(program: Program) -> bool:
    """Whether the program opens communicators."""
    return any(isinstance(operation_of(step), Opening) for step in program.steps)


def opening_refusal(case: Case, program: Program) -> str | None:
    """Why the case can't be timed: a library opens a communicator on the host."""
    if case.timer in ON_HOST or not opens(program):
        return None
    return (
        f"a library opens a communicator on the host, so timer={case.timer} would not time it; use"
        " timer=host_sync"
    )
