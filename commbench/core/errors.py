"""Everything commbench raises on purpose.

CommbenchError
 ├── ConfigError        exit 2: the user asked for something impossible; nothing was started
 ├── WorldBroken        exit 3: ranks are gone or stuck; what was finished is kept
 │    └── Missing       ... and these are the ranks that did not arrive
 ├── CommunicationError a library call failed; the case is `failed`
 ├── Unsaved            exit 3: measured results could not be saved in the run's folder
 └── Unsupported        a backend can't lower a step; the case is `skipped`
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_NAMED_RANKS = 8  # in a message


class CommbenchError(Exception):
    """Base of all errors that are reported in one line, without a traceback."""

    exit_status = 1


class ConfigError(CommbenchError):
    """Raised before anything is measured: says what was seen, what is allowed and what to do.

    `shared`: all ranks of a world raise it, so rank 0's line is enough.
    """

    exit_status = 2

    def __init__(self, text: str, shared: bool = False) -> None:
        super().__init__(text)
        self.shared = shared


class WorldBroken(CommbenchError):
    """Raised when the world can't continue; results so far are on disk.

    `recorded`: it is in run.json, where the parent of this world reads it. `stacks`: lines to show below the message.
    """

    exit_status = 3
    recorded = False
    stacks: tuple[str, ...] = ()


class Missing(WorldBroken):
    """Raised when ranks did not arrive at a meeting point within its deadline. `progress`: where they are."""

    def __init__(self, ranks: Iterable[int], meeting: str, deadline_s: float, progress: str = "") -> None:
        self.ranks, self.meeting, self.deadline_s = tuple(ranks), meeting, deadline_s
        names = ", ".join(str(rank) for rank in self.ranks[:MAX_NAMED_RANKS])
        names += f" and {len(self.ranks) - MAX_NAMED_RANKS} more" if len(self.ranks) > MAX_NAMED_RANKS else ""
        text = f"rank {names} did not arrive at {meeting!r} within {deadline_s:g} s"
        super().__init__(f"{text}: {progress}" if progress else text)


class CommunicationError(CommbenchError):
    """Raised when a call of the measured library returns an error."""


class Unsupported(CommbenchError):
    """Raised when a backend can't run a step; the message is the reason of the skip."""


class Unsaved(CommbenchError):
    """Raised by a writer at the end of a run: what is saved, what is not, and where the rest is now."""

    exit_status = 3
