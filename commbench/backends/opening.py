"""How communicators beside that of a case are opened while the clock runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from commbench.core.program import Group
from commbench.core.protocols import Backend


class Opener(Protocol):
    """Opens communicators beside that of a case, one at a time, and keeps the open one. Each method
    returns the call of the library that does so: a Call, or a NativeCall."""

    def open(self, groups: Sequence[Group], colour: int | None) -> Any:
        """One for each group of ranks of the case. `colour`: the number of this rank's group, as a
        split takes it; None for a single one, which is not part of another."""

    def first_call(self, members: Group) -> Any:
        """A barrier of the open one."""

    def close(self, members: Group) -> Any:
        """All ranks call it, after the first call of each."""


@dataclass(frozen=True)
class Opening:
    """A backend that opens communicators, the class of the one that a case has, and what opens
    others beside it; `native`: for engine=native. `no_split`: why it can't split one."""

    backend: type[Backend]
    communicator: type[Any]
    opener: Callable[[Any], Opener]
    native: Callable[[Any], Opener] | None = None
    no_split: str | None = None
