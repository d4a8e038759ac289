"""How a world ends: which process prints the reason, and with which status each of them exits.

Exit statuses: 0 all cases ok, 1 a case failed or missed `expect`, 2 bad configuration, 3 the world
broke, 4 in place of 0 where text could not be printed (printing.py), and of `commbench accept` and
`commbench watch --once` where they are undecided, 128 + signal.

The ranks of a world were started by a parent (`commbench` outside of any world, which exports
FOLDER), or by the user's own launcher. A parent can't rely on its launcher for the status of the
run, because launchers replace it with their own. So the ranks leave files in the run's folder; they
exit with 0 if the run is done, with 3 if the world broke:

    how the run ends             rank 0 leaves                    the parent then
    ---------------------------  -------------------------------  ----------------------------------------------
    done                         run.json with exit_status        exits with that status
    done, but launches are left  run.json: running, exit_status   starts a fresh world, which visits all cases again
    done, without a run.json     STATUS_FILE (leave_status)       exits with that status
    error before there is a run  STATUS_FILE (leave_status)       exits with that status
    broken, or a signal          run.json: broken or interrupted  prints its reason; a fresh world takes the rest,
                                                                  unless restarts are used up, on_error=stop, or
                                                                  no case was in flight: then it exits with 3
    rank 0 is gone or silent     nothing; another rank leaves     prints that reason; as above
                                 REASON
    another rank raises          run.json: interrupted; that      prints that error; as above
                                 rank leaves RAISED_FILE
    all are killed               nothing                          prints who failed first, or if nobody knows that, all in
                                                                  the order in which they ended; as above

The ranks write where they were; the parent adds which process failed first and how (WorldEnd),
which it knows as their parent or from the kernel.

Who prints when a rank's command ends with an error (who_prints). Where there is a parent, a rank
other than 0 leaves its line in RAISED_FILE, and the parent prints one line for all:

    process                   error                                  prints
    ------------------------  -------------------------------------  -------------------------------------------
    no world, or rank 0       in run.json, which the parent reads    nothing
    no world, or rank 0       any other                              the line, at once
    another rank, MPI loaded  raised by all ranks (shared)           nothing: MPI's end waits for rank 0
    another rank              raised by all ranks (shared)           nothing; ends after RANK_0_FIRST_S
    another rank              Missing, Unconnected, no WorldBroken:  the line with its rank and host, if it still
                              rank 0 says the same                   lives after RANK_0_FIRST_S
    another rank              any other WorldBroken                  the line with its rank and host, at once

Whom a rank notifies that the world is broken (whom_to_notify); rank 0 saves then, too:

    rank   started by     found by   notifies
    -----  -------------  ---------  ------------------------------------------------------------------
    0      own launcher   any rank   the user
    0      a parent       any rank   nobody, if there is a run.json, which the parent reads
    0      a parent       any rank   the parent (REASON), if there is none yet
    other  either         rank 0     nobody
    other  a parent       this rank  the parent (REASON)
    other  own launcher   this rank  the user, if it is the lowest on its node apart from rank 0

Under the user's own launcher on several nodes rank 0 then lives until all ranks could read its
verdict (heartbeat.VERDICT_S): with it the store ends, and ranks that had not read it would report
rank 0 as lost.
"""  # noqa: E501

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
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from commbench.core.case import RankIdentity
from commbench.core.errors import (
    MAX_NAMED_RANKS,
    CommbenchError,
    ConfigError,
    Missing,
    Unconnected,
    WorldBroken,
)
from commbench.core.states import RunStatus, status_of_run
from commbench.core.terminal import print_error
from commbench.hardware.mpi_library import give_up
from commbench.results.run_folder import exists, read_record, record_problem, write_json

from .launcher_log import log_text
from .output import LOG
from .printing import LAST_TEXT_S, finish_printing
from .recovery import case_in_flight
from .signals import SIGNAL_STATUS

# what a parent exports to the ranks that it starts
FOLDER = "COMMBENCH_FOLDER"  # the run's folder
JOB = "COMMBENCH_JOB"  # the checked configuration (config.settings.Job)
RESUME = "COMMBENCH_RESUME"  # why a world continues a run (recovery.Resume)
# the file for the reason why the world is broken, where rank 0 can't write run.json
REASON = "COMMBENCH_REASON"

# what ranks leave in the folder for their parent
STATUS_FILE = "refused"  # the exit status of a world that leaves no run.json
# the errors of ranks other than 0, a line of JSON each: process, message, stack
RAISED_FILE = "raised"

# the first rank that exits ends the world: torchrun and mpirun kill the others, rank 0 perhaps
# before it has printed
RANK_0_FIRST_S = 10.0
EXITED = "exited"
ENDED_EARLY: tuple[RunStatus, ...] = ("broken", "interrupted")


def process_text(rank: int, host: str | None = None, pid: int | None = None) -> str:
    """The name of a rank's process in all messages; by default of this one."""
    return f"rank {rank} on {host or socket.gethostname()} (pid {pid or os.getpid()})"


@dataclass(frozen=True)
class RankFailure:
    """A rank on this host that has ended or is stopped, and how: `was killed by SIGKILL`."""

    rank: int
    pid: int
    how: str

    @property
    def process(self) -> str:
        return process_text(self.rank, pid=self.pid)

    def __str__(self) -> str:
        return f"{self.process} {self.how}"


@dataclass(frozen=True)
class WorldEnd:
    """How a world ended, as its parent saw it. `launcher` is its name and process id; `cause` says
    what ended it where that was not the end of a rank.

    `failures` are the ranks that failed first: empty where nobody knows, or where all ended at
    once. `ended` are all ranks that have ended, in the order in which their parent saw it.
    `unclosed` says what was ended after the run, `limit` what the system refused meanwhile.
    """

    status: int
    launcher: str
    failures: tuple[RankFailure, ...] = ()
    cause: str | None = None
    unclosed: str | None = None
    ended: tuple[RankFailure, ...] = ()
    limit: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether all ranks have ended by themselves and without an error."""
        return self.is_by((exit_text(0),))

    def is_by(self, ways: Sequence[str]) -> bool:
        """Whether all ranks have ended by themselves, in one of these ways."""
        ended = self.status == 0 or bool(self.failures)  # else only the launcher's end is known
        return (
            ended and self.cause is None and all(failure.how in ways for failure in self.failures)
        )

    def __str__(self) -> str:
        if self.cause is not None:
            return self.cause
        ranks = self.failures or self.ended
        texts = [str(rank) for rank in ranks[:MAX_NAMED_RANKS]]
        if len(ranks) > MAX_NAMED_RANKS:
            texts.append(f"{len(ranks) - MAX_NAMED_RANKS} more ranks ended after them")
        if not self.failures:
            texts.append(f"{self.launcher} {exit_text(self.status)}")
        return "; ".join([*(text.rstrip(",") for text in texts[:-1]), texts[-1]])


class Print(Enum):
    """When a rank prints the error that ends it."""

    NOW = "now"
    AFTER_RANK_0 = "after rank 0"
    BY_RANK_0 = "by rank 0 alone"
    NEVER = "never"


class Notify(Enum):
    """Whom a rank notifies that the world is broken."""

    USER = "user"
    PARENT = "parent"
    NOBODY = "nobody"


# ---------------------------------------------------------------- decisions


def who_prints(error: CommbenchError, identity: RankIdentity | None, mpi_loaded: bool) -> Print:
    """The second table; `identity` is None outside of a world, and where the rank is unknown."""
    if identity is None or identity.rank == 0:
        return Print.NEVER if isinstance(error, WorldBroken) and error.recorded else Print.NOW
    if getattr(error, "shared", False):
        return Print.NEVER if mpi_loaded else Print.BY_RANK_0
    same_on_rank_0 = isinstance(error, Missing | Unconnected) or not isinstance(error, WorldBroken)
    return Print.AFTER_RANK_0 if same_on_rank_0 else Print.NOW


def whom_to_notify(
    rank: int, node: Sequence[int], has_parent: bool, has_record: bool, found_by_rank_0: bool
) -> Notify:
    """The third table; `node` has the ranks of this rank's node, `has_record` says whether run.json
    was begun."""
    if rank == 0:
        return Notify.USER if not has_parent else Notify.NOBODY if has_record else Notify.PARENT
    if found_by_rank_0:
        return Notify.NOBODY
    if has_parent:
        return Notify.PARENT
    return Notify.USER if rank == min(other for other in node if other != 0) else Notify.NOBODY


# ---------------------------------------------------------------- the end of a command


def end_with_error(error: CommbenchError, identity: RankIdentity | None) -> int:
    """Print the error as the second table says, notify the parent, and end a rank of a broken
    world.

    Returns the exit status.
    """
    if FOLDER in os.environ and (identity is None or identity.rank == 0):
        leave_status(os.environ[FOLDER], error.exit_status, resumed=RESUME in os.environ)
    printing = who_prints(error, identity, "mpi4py.MPI" in sys.modules)
    if printing in (Print.AFTER_RANK_0, Print.BY_RANK_0):
        time.sleep(RANK_0_FIRST_S)
    if printing in (Print.NOW, Print.AFTER_RANK_0):
        if identity is None or identity.rank == 0:
            print_error(str(error), error.stacks if isinstance(error, WorldBroken) else ())
        elif not report_raised(error, process_text(identity.rank)):
            print_error(f"{process_text(identity.rank)}: {error}")
    if FOLDER not in os.environ:  # else the parent ends the other ranks
        give_up(error.exit_status)
    return exit_rank(error.exit_status, identity if isinstance(error, WorldBroken) else None)


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


def leave_status(folder: str, status: int, resumed: bool = False) -> None:
    """Leave the exit status of rank 0 where there is no run.json of this world.

    A resumed run has one of an earlier world. If it breaks again, no status is left: the next fresh
    world continues.
    """
    if (resumed and status != WorldBroken.exit_status) or not exists(Path(folder) / "run.json"):
        with suppress(OSError):
            (Path(folder) / STATUS_FILE).write_text(str(status))


def report_reason(reason: str, environ: Mapping[str, str] = os.environ) -> None:
    """Leave the reason why the world is broken, where rank 0 has no run.json to write it to.

    Each world has a file of its own: a rank that was paused until a fresh world runs must not end
    that one.
    """
    with suppress(OSError, KeyError):
        Path(environ[REASON]).write_text(reason)


def report_raised(
    error: CommbenchError, process: str, environ: Mapping[str, str] = os.environ
) -> bool:
    """Leave the error of a rank other than 0 for the parent, which prints it; returns whether it
    could."""
    folder = environ.get(FOLDER)
    if folder is None:
        return False
    stack = "".join(traceback.format_exception(error.__cause__ or error)).splitlines()
    try:
        with (Path(folder) / RAISED_FILE).open("a") as file:
            file.write(json.dumps([process, str(error), stack]) + "\n")
    except OSError:  # the parent is on another host
        return False
    return True


# ---------------------------------------------------------------- in the parent


def reopen(folder: Path) -> None:
    """Prepare run.json for a world that continues a run: if it ends early, the end of the last
    world must not count. Raises WorldBroken."""
    run = read_record(folder)
    if not run:
        raise WorldBroken(record_problem(folder) or f"{folder} has no run.json")
    run.pop("stacks", None)
    try:
        write_json(folder / "run.json", run | {"exit_status": None})
    except OSError as error:
        raise WorldBroken(
            f"{folder / 'run.json'} can't be written: {error.strerror}; make room on its disk"
        ) from error
    _remove(folder, RAISED_FILE)


def has_ended(folder: Path, run: Mapping[str, Any]) -> bool:
    """Whether the run has an end, good or bad; `run` is its run.json."""
    return exists(folder / STATUS_FILE) or run.get("exit_status") is not None


def has_refused(folder: Path) -> bool:
    """Whether rank 0 ended with an error before there was a run."""
    with suppress(OSError):
        refusals = (ConfigError.exit_status, WorldBroken.exit_status)
        return (folder / STATUS_FILE).read_text() in map(str, refusals)
    return False


def is_broken(reason_file: Path, run: Mapping[str, Any]) -> bool:
    """Whether a rank has found the world broken; `run` is its run.json."""
    return exists(reason_file) or (
        status_of_run(run) == "broken" and run.get("exit_status") is not None
    )


def has_launches_left(run: Mapping[str, Any]) -> bool:
    """Whether a world has ended well, and another launch of its run is to follow."""
    return status_of_run(run) == "running" and run.get("exit_status") == 0


def run_status(folder: Path, reason_file: Path, end: WorldEnd, with_stacks: bool = False) -> int:
    """The exit status of the run, by the first table. Raises WorldBroken, with the stacks of the
    ranks if asked for."""
    status_file = folder / STATUS_FILE
    record = folder / "run.json"
    log = folder / LOG
    if exists(status_file):
        # on a full disk the file may be empty
        status = int(status_file.read_text() or WorldBroken.exit_status)
        # rank 0 has said why
        _remove(folder, STATUS_FILE, RAISED_FILE, *([] if exists(record) else [LOG]))
        return status
    run = read_record(folder)
    ended_by_rank_0 = run.get("exit_status") is not None
    # `interrupted` here is not by a signal to this process, which would have raised an exception
    if ended_by_rank_0 and status_of_run(run) not in ENDED_EARLY:
        _remove(folder, reason_file.name, RAISED_FILE)
        return int(run["exit_status"])
    raised = _read_raised(folder)
    reported = run.get("reason") if ended_by_rank_0 else None
    with suppress(OSError):
        reported = reported or reason_file.read_text()
    problem = record_problem(folder)
    if problem is not None and reported is None and not raised and end.is_good:
        raise WorldBroken(problem)  # no rank is to blame
    silent = (exit_text(0), exit_text(WorldBroken.exit_status))
    unsaid = reported is None and not raised and case_in_flight(folder) is None
    if run and unsaid and end.is_by(silent):
        # rank 0 has said why, and could not write it
        raise WorldBroken(f"{record} does not have the end of this run; make room on its disk")
    reason = broken_reason(
        end, reported, _when(folder, run), [f"{process}: {text}" for process, text, _ in raised]
    )
    kept = [end.limit] if end.limit is not None and "pids.max" not in reason else []
    kept += [f"finished cases are in {folder}"] if run else []
    if exists(log):
        # it knows more than a status where no rank could say anything
        by_signal = any(map(_by_signal, end.failures or end.ended))
        unknown = reported is None and not raised and not by_signal
        kept.append(f"the launcher's own messages are in {log}{log_text(log, unknown)}")
    stacks = {
        **run.get("stacks", {}),
        **{process.split(" on ")[0]: stack for process, _, stack in raised},
    }
    if run:
        with suppress(OSError):
            ended = {
                "status": "broken",
                "exit_status": WorldBroken.exit_status,
                "reason": reason,
                "stacks": stacks,
            }
            write_json(record, run | ended)
    _remove(folder, reason_file.name, RAISED_FILE)
    error = WorldBroken("; ".join([reason, *kept]))
    if with_stacks:
        error.stacks = tuple(f"{rank}: {call}" for rank, calls in stacks.items() for call in calls)
    raise error


def _by_signal(failure: RankFailure) -> bool:
    return not failure.how.startswith(EXITED)


def _read_raised(folder: Path) -> list[tuple[str, str, list[str]]]:
    """Process, message and stack of each rank that has left an error."""
    raised = list[tuple[str, str, list[str]]]()
    with suppress(OSError):
        for line in (folder / RAISED_FILE).read_text().splitlines():
            with suppress(ValueError):  # of a rank that was killed while it wrote
                process, text, stack = json.loads(line)
                raised.append((process, text, stack))
    return raised


def broken_reason(
    end: WorldEnd, reported: str | None, when: str, raised: Sequence[str] = ()
) -> str:
    """Why a world broke: what ranks `reported` or `raised`, completed by what their parent has
    seen; else the latter and `when`."""
    if end.cause is not None:
        return f"{end.cause} {when}"
    for failure in end.failures:
        if words := next((text for text in raised if text.startswith(failure.process)), None):
            return words
        # rank 0 only sees that a process is gone
        if reported is not None and failure.process in reported:
            return reported.replace(f"{failure.process} has ended", str(failure))
    # a rank that ends because of an error has left the reason; only the parent knows what has
    # killed a rank
    reported = reported or next(iter(raised), None)
    if reported is not None and all(
        failure.how == exit_text(WorldBroken.exit_status) for failure in end.failures
    ):
        return reported
    return f"{end} {when}"


def _when(folder: Path, run: Mapping[str, Any]) -> str:
    problem = record_problem(folder)
    if problem is not None:
        return f"and {problem}"
    if not run:
        return "while starting, before anything was measured"
    case = case_in_flight(folder)
    return "before the first case" if case is None else f"while measuring {case[1]}"


def end_interrupted(folder: Path, status: int) -> None:
    """Complete run.json after a signal to the parent, if no rank could, and give it the parent's
    exit status: ranks get SIGTERM where the parent got SIGHUP."""
    run = read_record(folder)
    is_interrupted = status_of_run(run) == "interrupted" and run.get("exit_status") != status
    if run and (run.get("exit_status") is None or has_launches_left(run) or is_interrupted):
        with suppress(OSError):
            write_json(folder / "run.json", run | {"status": "interrupted", "exit_status": status})
    _remove(folder, RAISED_FILE, *([] if run else [LOG]))


def exit_text(code: int | None) -> str:
    """How a process ended, from its status as subprocess gives it: `was killed by SIGSEGV` for
    -11."""
    if code is None:
        return "has ended"
    if code in (-signal.SIGTERM, SIGNAL_STATUS + signal.SIGTERM):
        return "was ended by SIGTERM"
    if code == -signal.SIGBUS:
        return "was killed by SIGBUS, as if /dev/shm were full,"
    if code >= 0:
        return f"{EXITED} with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


def _remove(folder: Path, *names: str) -> None:
    """Remove these files, and the folder if nothing else is in it."""
    with suppress(OSError):
        for name in names:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
