"""The exceptions that commbench raises on purpose, with the exit statuses that they lead to."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable

MAX_NAMED_RANKS = 8  # in a message


class CommbenchError(Exception):
    """Base of all errors that are reported in one line, without a traceback."""

    exit_status = 1


class ConfigError(CommbenchError):
    """Raised before anything is started or measured; the message says what was seen, what is
    allowed and what to do.

    `shared`: all ranks of a world raise it, so only rank 0 prints it.
    """

    exit_status = 2

    def __init__(self, text: str, shared: bool = False) -> None:
        super().__init__(text)
        self.shared = shared


class NoProcess(CommbenchError):
    """Raised where the system starts no more threads or processes for this user."""

    exit_status = 3


def process_limit(error: BaseException) -> NoProcess | None:
    """The error for a thread or process that the system refused to start; None for any other.

    Python, fork and gloo say it in different words.
    """
    words = ("can't start new thread", os.strerror(errno.EAGAIN))
    if not any(word in str(error) for word in words):
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = "no limit" if most == resource.RLIM_INFINITY else str(most)
    return NoProcess(
        f"no more threads or processes can be started ({error}): raise the limit of this user"
        f" (ulimit -u, here {limit}) or of its control group (pids.max)"
    )


class Unreadable(CommbenchError):
    """Raised for stored results and traces that can't be read, by every command that reads them."""

    exit_status = 2


def no_permission(path: object) -> str:
    """The line for a file or folder that this user may not read or write, the same in each
    command."""
    is_readable = os.access(str(path), os.R_OK, effective_ids=True)
    what = "written" if is_readable else "read"
    return f"{path} can't be {what}: {os.strerror(errno.EACCES)}; ask its owner for access"


class WorldBroken(CommbenchError):
    """Raised when ranks are lost or stuck and the world can't continue; finished cases are kept.

    `recorded`: the error is in run.json, where the parent of this world reads it. `stacks`: lines
    to show below it.
    """

    exit_status = 3
    recorded = False
    stacks: tuple[str, ...] = ()


class Missing(WorldBroken):
    """Raised when ranks did not arrive at a meeting point within its deadline. `progress`: where
    they are now."""

    def __init__(
        self, ranks: Iterable[int], meeting: str, deadline_s: float, progress: str = ""
    ) -> None:
        self.ranks = tuple(ranks)
        self.meeting = meeting
        self.deadline_s = deadline_s
        names = ", ".join(map(str, self.ranks[:MAX_NAMED_RANKS]))
        names += (
            f" and {len(self.ranks) - MAX_NAMED_RANKS} more"
            if len(self.ranks) > MAX_NAMED_RANKS
            else ""
        )
        text = f"rank {names} did not arrive at {meeting!r} within {deadline_s:g} s"
        super().__init__(f"{text}: {progress}" if progress else text)


class StoreLost(Missing):
    """Raised at a meeting point where the store itself is gone or gives no answer; `ranks` has the
    rank that hosts it."""

    def __init__(self, owner: int, meeting: str, waited_s: float, cause: str) -> None:
        super().__init__([owner], meeting, waited_s)
        lost = f"the store on rank {owner} was lost at {meeting!r} after {waited_s:.1f} s"
        self.args = (f"{lost}: {cause}",)


class Unconnected(WorldBroken):
    """Raised when the ranks do not reach each other in the beginning: all of them notice it, so
    rank 0 says it."""


class CommunicationError(CommbenchError):
    """Raised when a call of the measured library returns an error; the case is `failed`."""


class Unsupported(CommbenchError):
    """Raised when a backend can't run a step; the case is `skipped`, with the message as its
    reason."""


class Unsaved(CommbenchError):
    """Raised by a writer at the end of a run if results could not be saved in its folder; says
    where they are now."""

    exit_status = 3
