"""How a rank ends: whom it tells why, and with which status it exits.

Exit statuses: 0 all cases ok, 1 a case failed or missed `expect`, 2 bad configuration, 3 the world
broke, or results or text could not be saved, 4 `commbench accept` or `commbench watch --once` is
undecided, 128 + signal.

The ranks of a world were started by a parent (`commbench` outside of any world, which exports
FOLDER), or by the user's own launcher. Why a world breaks travels on three ways, as no one of them
reaches everybody:

- Ranks tell each other over the store (heartbeat.py), also on other hosts. It ends with rank 0, and
  a parent has no connection to it.
- A rank tells its parent in the file ENDS (`RankEnd`): whole lines, which stay when the rank is
  killed or its launcher drops what it prints.
- Rank 0 completes run.json, which stays for `report` and `resume`.

The ranks say where they were; the parent adds which process failed first and how (world_end.py).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from commbench.core.case import RankIdentity
from commbench.core.errors import (
    CommbenchError,
    Missing,
    Unconnected,
    WorldBroken,
)
from commbench.core.terminal import print_error
from commbench.hardware.mpi_library import give_up
from commbench.results.run_folder import RECORD, exists

from .printing import LAST_TEXT_S, finish_printing
from .signals import SIGNAL_STATUS

# what a parent exports to the ranks that it starts
FOLDER = "COMMBENCH_FOLDER"  # the run's folder
JOB = "COMMBENCH_JOB"  # the checked configuration (config.settings.Job)
RESUME = "COMMBENCH_RESUME"  # why a world continues a run (recovery.Resume)
# the file in which the ranks of a world say how they ended, a RankEnd a line. Each world has its
# own: a rank that was paused until a fresh world runs must not end that one
ENDS = "COMMBENCH_ENDS"

# the first rank that exits ends the world: torchrun and mpirun kill the others, rank 0 perhaps
# before it has printed
RANK_0_FIRST_S = 10.0


def process_text(rank: int, host: str | None = None, pid: int | None = None) -> str:
    """The name of a rank's process in all messages; by default of this one."""
    return f"rank {rank} on {host or socket.gethostname()} (pid {pid or os.getpid()})"


# ---------------------------------------------------------------- who says why

# what ends a rank
Cause = Literal[
    "recorded",  # an error that is in run.json
    "shared",  # an error that all ranks raise
    "common",  # an error of which rank 0 knows as much
    "own",  # any other error
    "lost",  # a lost rank that this rank has noticed
    "verdict",  # a lost rank that rank 0 has noticed, as this rank read
]


class Tell(Enum):
    """Whom a rank tells why it ends."""

    USER = "user"
    PARENT = "parent"
    NOBODY = "nobody"


def whom_to_tell(cause: Cause, rank: int, has_parent: bool, is_first_on_node: bool = False) -> Tell:
    """Whom this rank tells why it ends. Rank 0 is also a process outside of a world. The first rank
    on a node is the lowest one apart from rank 0."""
    match cause, rank == 0, has_parent:
        case ("recorded", True, True) | ("shared" | "verdict", False, _):
            return Tell.NOBODY  # the parent reads run.json, or rank 0 says it
        case ("lost", False, False) if not is_first_on_node:
            return Tell.NOBODY
        case ("lost", True, True) | (_, False, True):
            return Tell.PARENT
        case _:
            return Tell.USER


def cause_of(error: CommbenchError) -> Cause:
    """What ends a rank whose command raises this error."""
    if isinstance(error, WorldBroken) and error.recorded:
        return "recorded"
    if getattr(error, "shared", False):
        return "shared"
    if isinstance(error, Missing | Unconnected) or not isinstance(error, WorldBroken):
        return "common"
    return "own"


# ---------------------------------------------------------------- the end of a command


def end_with_error(error: CommbenchError, identity: RankIdentity | None) -> int:
    """Say why, and end a rank of a broken world; returns the exit status.

    `identity` is None outside of a world, and where the rank is unknown.
    """
    rank = 0 if identity is None else identity.rank
    has_parent = FOLDER in os.environ
    if has_parent and rank == 0:
        leave_status(os.environ[FOLDER], error.exit_status, resumed=RESUME in os.environ)
    cause = cause_of(error)
    # the end of MPI waits for rank 0
    waits = cause == "common" or (cause == "shared" and "mpi4py.MPI" not in sys.modules)
    if rank != 0 and waits:
        time.sleep(RANK_0_FIRST_S)
    _tell(error, whom_to_tell(cause, rank, has_parent), rank)
    if not has_parent:  # which would end the other ranks
        give_up(error.exit_status)
    return exit_rank(error.exit_status, identity if isinstance(error, WorldBroken) else None)


def _tell(error: CommbenchError, whom: Tell, rank: int) -> None:
    """Say why this rank ends: to the user also where its parent is on another host."""
    if whom is Tell.NOBODY:
        return
    process = process_text(rank)
    stack = "".join(traceback.format_exception(error.__cause__ or error)).splitlines()
    end = RankEnd("rank", process, error.exit_status, str(error), stack)
    if whom is Tell.PARENT and leave_end(end):
        return
    stacks = error.stacks if isinstance(error, WorldBroken) else ()
    print_error(f"{process}: {error}" if rank else str(error), stacks)


def exit_rank(status: int, identity: RankIdentity | None) -> int:
    """Wait until all text is read, and end a rank at once: Python's own end would abort in gloo's
    last worker thread, or wait for ranks that are gone.

    Outside of a world it returns the exit status.
    """
    try:
        status = finish_printing(status, LAST_TEXT_S if status > SIGNAL_STATUS else None)
    except KeyboardInterrupt:
        status = SIGNAL_STATUS + signal.SIGINT
    if identity is not None:
        os._exit(status)
    return status


# ---------------------------------------------------------------- from the ranks to their parent


@dataclass(frozen=True)
class RankEnd:
    """What a rank tells its parent when it ends.

    `ended` is the run, where its exit status is not in a run.json of this world; the world, where
    rank 0 may be unable to write the reason to run.json; or only this rank, by its own error.
    """

    ended: Literal["run", "world", "rank"]
    process: str
    status: int
    reason: str = ""
    stack: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.process}: {self.reason}"


def leave_end(end: RankEnd, environ: Mapping[str, str] = os.environ) -> bool:
    """Add a line to the file of this world; returns whether it could."""
    line = json.dumps(asdict(end)).encode() + b"\n"
    try:
        # unbuffered: the lines of several ranks stay whole
        with Path(environ[ENDS]).open("ab", buffering=0) as file:
            return file.write(line) == len(line)
    except (KeyError, OSError):  # no parent, or one on another host
        return False


def read_ends(file: Path) -> list[RankEnd]:
    """What the ranks of a world have left, without the line of one that was killed meanwhile."""
    ends = list[RankEnd]()
    with suppress(OSError):
        for line in file.read_text(errors="replace").splitlines():
            with suppress(ValueError, TypeError):
                ends.append(RankEnd(**json.loads(line)))
    return ends


def leave_status(folder: str, status: int, resumed: bool = False) -> None:
    """Leave the exit status of rank 0 where there is no run.json of this world.

    A resumed run has one of an earlier world. If it breaks again, no status is left: the next fresh
    world continues.
    """
    if (resumed and status != WorldBroken.exit_status) or not exists(Path(folder) / RECORD):
        leave_end(RankEnd("run", process_text(0), status))
