"""Steps that open a communicator beside that of the case, use it for the first time, and close
it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commbench.core.program import Barrier, Compute, Group, In, Operation, OwnStep, Sleep
from commbench.core.variables import Engine

from .openers import no_opener, opener_of


@dataclass(frozen=True)
class CommunicatorStep(OwnStep):
    """A step of a rank. `groups` hold ranks of the case; a communicator is opened for each.

    `colour`: the number of this rank's group, as a split takes it; None for a single communicator,
    which is not part of another one.
    """

    groups: tuple[Group, ...]
    colour: int | None = None

    @property
    def members(self) -> Group:
        """The ranks of the communicator that this rank is in."""
        return self.groups[self.colour or 0]

    def refusal(self, backend: Any) -> str | None:
        return no_opener(backend, self.colour is not None)

    @property
    def simulated(self) -> Operation | Compute | In:
        return In(self.members, Barrier())


@dataclass(frozen=True)
class OpenCommunicator(CommunicatorStep):
    """Returns when it is open."""

    def call(self, communicator: Any, engine: Engine) -> Any:
        return opener_of(communicator, engine).open(self.groups, self.colour)


@dataclass(frozen=True)
class FirstCall(CommunicatorStep):
    """A barrier of it."""

    def call(self, communicator: Any, engine: Engine) -> Any:
        return opener_of(communicator, engine).first_call(self.members)


@dataclass(frozen=True)
class CloseCommunicator(CommunicatorStep):
    """Closes it, and lets go of its memory."""

    def call(self, communicator: Any, engine: Engine) -> Any:
        return opener_of(communicator, engine).close(self.members)

    @property
    def simulated(self) -> Compute:
        return Sleep(0)
