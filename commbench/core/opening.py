"""Steps that open a communicator beside that of the case, use it for the first time, and close
it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Opening:
    """A step of a communicator of all ranks of the case, or, with `groups`, of those that a split
    makes: each holds ranks of the case, and each rank is in one."""

    groups: tuple[tuple[int, ...], ...] = ()

    def members(self, rank: int, size: int) -> tuple[int, ...]:
        """The ranks of the communicator that this rank opens."""
        mine = (group for group in self.groups if rank in group)
        return next(mine, tuple(range(size)))

    def colour(self, rank: int) -> int:
        """The number of this rank's group, as a split takes it."""
        return next(number for number, group in enumerate(self.groups) if rank in group)


@dataclass(frozen=True)
class OpenCommunicator(Opening):
    """Returns when it is open."""


@dataclass(frozen=True)
class FirstCall(Opening):
    """A barrier of it."""


@dataclass(frozen=True)
class CloseCommunicator(Opening):
    """Closes it, and lets go of its memory."""
