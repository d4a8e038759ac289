"""How a world ends: which process prints the reason, and with which status each of them exits.

Exit statuses: 0 all cases ok, 1 a case failed or missed `expect`, 2 bad configuration, 3 the world broke, 128 + signal.

The ranks of a world were started by a parent (`commbench` outside of any world, which exports FOLDER), or by the user's
own launcher ("given"). A parent can't rely on its launcher for the status of the run, for launchers replace it by their
own. So the ranks leave files in the run's folder, and each of them exits with 0 once the run has an end:

    how the run ends             rank 0 leaves                    the parent then
    ---------------------------  -------------------------------  ----------------------------------------------
    done                         run.json with exit_status        exits with that status
    done, without a run.json     STATUS_FILE (leave_status)       exits with that status
    error before there is a run  STATUS_FILE (report_refusal)     exits with that status
    broken, or a signal          run.json: broken or interrupted  prints its reason; a fresh world takes the rest
    rank 0 is gone or silent     nothing; another rank: LOST      prints LOST's text; as above
    all are killed               nothing                          prints who ended first; as above

Where the launcher is a rank server (launcher=local), FAILURE_FILE names the rank that failed first and its signal or
exit status, also before a rank has sent a heartbeat; the parent puts it into the reason.

Who prints, when a rank's command ends with an error (who_prints):

    process                   error                                  prints
    ------------------------  -------------------------------------  -------------------------------------------
    no world, or rank 0       in run.json, which the parent reads    nothing
    no world, or rank 0       any other                              the line, at once
    another rank, MPI loaded  raised by all ranks (shared)           nothing: MPI's end waits for rank 0
    another rank              Missing, or no WorldBroken: rank 0     the line with its rank and host, if it still
                              says the same                          lives after RANK_0_FIRST_S
    another rank              any other WorldBroken                  the line with its rank and host, at once

What a rank does whose heartbeat thread ends the run (lost_action):

    rank   world     found by   action
    -----  --------  ---------  ------------------------------------------------------------------
    0      given     any rank   prints and saves
    0      parent's  any rank   saves, for the parent to read; prints where there is no run.json yet
    other  either    rank 0     nothing
    other  parent's  this rank  writes LOST, for the parent to read
    other  given     this rank  prints, if it is the lowest on its node apart from rank 0
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from commbench.core.case import RankIdentity
from commbench.core.errors import CommbenchError, Missing, WorldBroken
from commbench.core.run_folder import write_json
from commbench.core.text import printable
from commbench.hardware.mpi_library import give_up

# what a parent exports to the ranks that it starts
FOLDER = "COMMBENCH_FOLDER"  # the run's folder
RESUME = "COMMBENCH_RESUME"  # how a world continues a run: retry, force, or rest (what a broken world has left)

# what ranks leave in the folder for their parent
STATUS_FILE = "refused"  # the exit status of a world that leaves no run.json
LOST = "lost"  # the reason, from a rank whose rank 0 is silent
FAILURE_FILE = (
    "first_failure.json"  # the rank that failed first, from the parent of the ranks, if that is a rank server
)

# the first rank that exits ends the world: torchrun and mpirun kill the others, rank 0 perhaps before it has printed
RANK_0_FIRST_S = 10.0


@dataclass(frozen=True)
class RankFailure:
    """The first rank of a world that did not end with status 0, and how: `was killed by SIGKILL`."""

    rank: int
    pid: int
    host: str
    how: str

    @property
    def process(self) -> str:
        """As heartbeats name it."""
        return f"rank {self.rank} on {self.host} (pid {self.pid})"

    def __str__(self) -> str:
        return f"{self.process} {self.how}"


class Print(Enum):
    """When a rank prints the error that ends it."""

    NOW = "now"
    AFTER_RANK_0 = "after rank 0"
    NEVER = "never"


class LostAction(Enum):
    """What a rank does whose heartbeat has found the world broken."""

    SAVE = "save"
    PRINT_AND_SAVE = "print and save"
    TELL_PARENT = "tell the parent"
    PRINT = "print"
    NOTHING = "nothing"


# ---------------------------------------------------------------- decisions


def who_prints(error: CommbenchError, identity: RankIdentity | None, mpi_loaded: bool) -> Print:
    """The second table; `identity` is None outside of a world, and where nobody knows who is rank 0."""
    if identity is None or identity.rank == 0:
        return Print.NEVER if isinstance(error, WorldBroken) and error.recorded else Print.NOW
    if mpi_loaded and getattr(error, "shared", False):
        return Print.NEVER
    same_on_rank_0 = isinstance(error, Missing) or not isinstance(error, WorldBroken)
    return Print.AFTER_RANK_0 if same_on_rank_0 else Print.NOW


def lost_action(rank: int, node: Sequence[int], given: bool, has_record: bool, from_rank_0: bool) -> LostAction:
    """The third table; `node` has the ranks of this rank's node, `has_record` says whether run.json was begun."""
    if rank == 0:
        return LostAction.PRINT_AND_SAVE if given or not has_record else LostAction.SAVE
    if from_rank_0:
        return LostAction.NOTHING
    if not given:
        return LostAction.TELL_PARENT
    return LostAction.PRINT if rank == min(other for other in node if other != 0) else LostAction.NOTHING


# ---------------------------------------------------------------- the end of a command


def end_with_error(error: CommbenchError, identity: RankIdentity | None) -> int:
    """Print the error as the second table says, tell the parent, and end a rank of a broken world; the exit status."""
    if identity is None or identity.rank == 0:
        report_refusal(error.exit_status)
    printing = who_prints(error, identity, "mpi4py.MPI" in sys.modules)
    if printing is Print.AFTER_RANK_0:
        time.sleep(RANK_0_FIRST_S)
    if printing is not Print.NEVER:
        speaker = "" if identity is None or identity.rank == 0 else f"rank {identity.rank} on {socket.gethostname()}: "
        print(f"commbench: {speaker}{printable(str(error))}", file=sys.stderr)
    sys.stderr.flush()
    give_up(error.exit_status)
    if isinstance(error, WorldBroken):
        exit_rank(error.exit_status, identity)
    return error.exit_status


def exit_rank(status: int, identity: RankIdentity | None) -> None:
    """End a rank at once: Python's own end would abort in gloo's last worker thread, or wait for ranks that are gone.

    Returns outside of a world.
    """
    if identity is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


# ---------------------------------------------------------------- from the ranks to their parent


def report_refusal(status: int, environ: Mapping[str, str] = os.environ) -> None:
    """On rank 0, which ends with an error: leave the status where there is no run.json of this world.

    A resumed run has one of an earlier world. One that breaks again leaves no status: the next fresh world continues.
    """
    folder = environ.get(FOLDER)
    if folder is None or not Path(folder).is_dir():
        return
    resumed = RESUME in environ and status != WorldBroken.exit_status
    if resumed or not (Path(folder) / "run.json").exists():
        with suppress(OSError):
            (Path(folder) / STATUS_FILE).write_text(str(status))


def leave_status(folder: str, status: int) -> None:
    """On rank 0, at the end of a run: its status, where no writer has left a run.json."""
    if not (Path(folder) / "run.json").exists():
        with suppress(OSError):
            (Path(folder) / STATUS_FILE).write_text(str(status))


def report_lost(folder: str, reason: str) -> None:
    """On another rank, in place of a rank 0 that is silent."""
    with suppress(OSError):
        (Path(folder) / LOST).write_text(reason)


def record_failure(folder: Path, failure: RankFailure) -> None:
    """In a rank server, for the parent."""
    with suppress(OSError):
        (folder / FAILURE_FILE).write_text(json.dumps(asdict(failure)))


# ---------------------------------------------------------------- in the parent


def reopen(folder: Path) -> None:
    """Before a world continues a run: one that dies at once must not be taken for the earlier one."""
    run = json.loads((folder / "run.json").read_text())
    write_json(folder / "run.json", run | {"exit_status": None})


def run_status(folder: Path, launcher_status: int, first_ended: Sequence[str]) -> int:
    """The exit status of the run, by the first table. Raises WorldBroken.

    `first_ended` names the ranks that ended before all others.
    """
    status_file, record, failure = folder / STATUS_FILE, folder / "run.json", take_failure(folder)
    if status_file.exists():
        status = int(status_file.read_text() or WorldBroken.exit_status)  # a full disk takes the file, not the number
        with suppress(OSError):
            status_file.unlink()
        _remove_if_empty(folder)
        return status
    ended = f"the launcher {exit_text(launcher_status)}" if failure is None else str(failure)
    own_message = "" if "was killed" in ended or "is stopped" in ended else "; its own message is above"
    if not folder.exists():
        raise WorldBroken(f"{folder} is gone; {ended}{own_message}")
    if not record.exists():
        _remove_if_empty(folder)
        raise WorldBroken(f"{ended} before anything was measured{own_message}")
    run = json.loads(record.read_text())
    ended_by_rank_0 = run.get("exit_status") is not None
    if ended_by_rank_0 and run.get("status") not in ("broken", "interrupted"):
        return int(run["exit_status"])
    # interrupted, too, but not by a signal to this process: it would not be here
    cause = ended if failure is not None or launcher_status < 0 else None
    reason = run.get("reason") if ended_by_rank_0 else lost_reason(folder, first_ended, cause)
    reason = reason or f"{ended} in the middle of the run"
    if failure is not None:  # heartbeats only see that a process is gone
        reason = reason.replace(f"{failure.process} has ended", str(failure))
    with suppress(OSError):
        write_json(record, run | {"status": "broken", "exit_status": WorldBroken.exit_status, "reason": reason})
    raise WorldBroken(f"{reason}; finished cases are in {folder}")


def lost_reason(folder: Path, first_ended: Sequence[str], cause: str | None = None) -> str:
    """Why rank 0 did not end the run itself; removes LOST. `cause` is what is known of the end of the processes."""
    try:
        return (folder / LOST).read_text()
    except OSError:
        if cause is not None:
            return cause
        return f"{', '.join(first_ended)} ended first" if first_ended else "rank 0 left no message"
    finally:
        (folder / LOST).unlink(missing_ok=True)


def take_failure(folder: Path) -> RankFailure | None:
    """The failure that a rank server has recorded; removes its file."""
    file = folder / FAILURE_FILE
    try:
        return RankFailure(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def exit_text(code: int) -> str:
    """How a process ended: `was killed by SIGSEGV` for -11, as subprocess counts, `exited with status 3`."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # somebody else has removed it
        if not any(folder.iterdir()):
            folder.rmdir()
