"""Everything commbench raises on purpose.

CommbenchError
 ├── ConfigError        exit 2: the user asked for something impossible; nothing was started
 ├── WorldBroken        exit 3: ranks are gone or stuck; what was finished is kept
 │    └── Missing       ... and these are the ranks that did not arrive
 ├── CommunicationError a library call failed; the case is `failed`
 ├── Unsaved            exit 3: results that were measured are not where they belong
 └── Unsupported        a backend can't lower a step; the case is `skipped`
"""

from __future__ import annotations

from collections.abc import Iterable


class CommbenchError(Exception):
    """Base of all errors that are reported in one line, without a traceback."""

    exit_status = 1


class ConfigError(CommbenchError):
    """Raised at the door: says what was seen, what is allowed and what to do.

    `shared`: all ranks of a world raise it, so rank 0's line is enough.
    """

    exit_status = 2

    def __init__(self, text: str, shared: bool = False) -> None:
        super().__init__(text)
        self.shared = shared


class WorldBroken(CommbenchError):
    """Raised when the world can't go on; results so far are on disk. `told`: the parent reads it in run.json."""

    exit_status = 3
    told = False


class Missing(WorldBroken):
    """Raised when ranks did not arrive at a meeting point within its deadline. `places`: where they are, in words."""

    def __init__(self, ranks: Iterable[int], meeting: str, deadline_s: float, places: str = "") -> None:
        self.ranks, self.meeting, self.deadline_s = tuple(ranks), meeting, deadline_s
        names = ", ".join(str(rank) for rank in self.ranks)
        text = f"rank {names} did not arrive at {meeting!r} within {deadline_s:g} s"
        super().__init__(f"{text}: {places}" if places else text)


class CommunicationError(CommbenchError):
    """Raised when a call of the measured library returns an error."""


class Unsupported(CommbenchError):
    """Raised when a backend has no way to run a step; the message is the skip's reason."""


class Unsaved(CommbenchError):
    """Raised by a writer at the end of a run: what is saved, what is not, and where the rest is now."""

    exit_status = 3
