"""How a world ended, as its parent finds out: why, and with which status its run ends.

A parent can't rely on its launcher for the status of the run, because launchers replace it with
their own. `run_status` finds it from what the ranks have left (exit_protocol.py), from run.json,
which rank 0 completes, and from how the processes ended (`WorldEnd`).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.core.errors import MAX_NAMED_RANKS, ConfigError, WorldBroken
from commbench.core.states import RunStatus, status_of_run
from commbench.results.run_folder import RECORD, exists, read_record, record_problem, write_json

from .exit_protocol import RankEnd, process_text, read_ends
from .launcher_log import log_text
from .output import LOG
from .recovery import case_in_flight
from .signals import SIGNAL_STATUS

EXITED = "exited"
TERMINATED = (-signal.SIGTERM, SIGNAL_STATUS + signal.SIGTERM)
ENDED_EARLY: tuple[RunStatus, ...] = ("broken", "interrupted")


def exit_text(code: int | None) -> str:
    """How a process ended, from its status as subprocess gives it: `was killed by SIGSEGV` for
    -11."""
    if code is None:
        return "has ended"
    if code in TERMINATED:
        return "was ended by SIGTERM"
    if code == -signal.SIGBUS:
        return "was killed by SIGBUS, as if /dev/shm were full,"
    if code >= 0:
        return f"{EXITED} with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


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


# ---------------------------------------------------------------- run.json and what ranks have left


def reopen(folder: Path) -> None:
    """Prepare run.json for a world that continues a run: if it ends early, the end of the last
    world must not count. Raises WorldBroken."""
    run = read_record(folder)
    if not run:
        raise WorldBroken(record_problem(folder) or f"{folder} has no run.json")
    run.pop("stacks", None)
    try:
        write_json(folder / RECORD, run | {"exit_status": None})
    except OSError as error:
        raise WorldBroken(
            f"{folder / 'run.json'} can't be written: {error.strerror}; make room on its disk"
        ) from error


def has_ended(ends: Sequence[RankEnd], run: Mapping[str, Any]) -> bool:
    """Whether the run has an end, good or bad; `run` is its run.json."""
    return any(end.ended == "run" for end in ends) or run.get("exit_status") is not None


def has_refused(ends: Sequence[RankEnd]) -> bool:
    """Whether rank 0 ended with an error before there was a run."""
    refusals = (ConfigError.exit_status, WorldBroken.exit_status)
    return any(end.ended == "run" and end.status in refusals for end in ends)


def is_broken(ends: Sequence[RankEnd], run: Mapping[str, Any]) -> bool:
    """Whether a rank has found the world broken; `run` is its run.json."""
    return any(end.ended == "world" for end in ends) or (
        status_of_run(run) == "broken" and run.get("exit_status") is not None
    )


def has_launches_left(run: Mapping[str, Any]) -> bool:
    """Whether a world has ended well, and another launch of its run is to follow."""
    return status_of_run(run) == "running" and run.get("exit_status") == 0


def run_status(folder: Path, ends_file: Path, end: WorldEnd, with_stacks: bool = False) -> int:
    """The exit status of the run. Raises WorldBroken, with the stacks of the ranks if asked for."""
    ends = read_ends(ends_file)
    run = read_record(folder)
    status = next((each.status for each in ends if each.ended == "run"), None)
    if status is not None:  # rank 0 has said why
        if not exists(folder / RECORD):
            _remove_log(folder)
        return status
    # `interrupted` here is not by a signal to this process, which would have raised an exception
    if run.get("exit_status") is not None and status_of_run(run) not in ENDED_EARLY:
        return int(run["exit_status"])
    raised = [each for each in ends if each.ended == "rank"]
    reported = run.get("reason") if run.get("exit_status") is not None else None
    reported = reported or next((each.reason for each in ends if each.ended == "world"), None)
    nobody_said = reported is None and not raised
    if nobody_said:
        _check_record(folder, run, end)
    reason = broken_reason(end, reported, _when(folder, run), raised)
    stacks = {
        **run.get("stacks", {}),
        **{each.process.split(" on ")[0]: list(each.stack) for each in raised},
    }
    if run:
        with suppress(OSError):
            ended = {"status": "broken", "exit_status": WorldBroken.exit_status}
            write_json(folder / RECORD, {**run, **ended, "reason": reason, "stacks": stacks})
    error = WorldBroken("; ".join([reason, *_kept(folder, run, end, reason, nobody_said)]))
    if with_stacks:
        error.stacks = tuple(f"{rank}: {call}" for rank, calls in stacks.items() for call in calls)
    raise error


def _check_record(folder: Path, run: Mapping[str, Any], end: WorldEnd) -> None:
    """Raises WorldBroken where run.json is to blame: it can't be read or written."""
    problem = record_problem(folder)
    if problem is not None and end.is_by((exit_text(0),)):
        raise WorldBroken(problem)
    silent = (exit_text(0), exit_text(WorldBroken.exit_status))
    if run and case_in_flight(folder) is None and end.is_by(silent):
        # rank 0 has said why, and could not write it
        raise WorldBroken(
            f"{folder / 'run.json'} does not have the end of this run; make room on its disk"
        )


def _kept(
    folder: Path, run: Mapping[str, Any], end: WorldEnd, reason: str, nobody_said: bool
) -> list[str]:
    """What else the user is told of a broken world: a limit, and where results and messages are."""
    kept = [end.limit] if end.limit is not None and "pids.max" not in reason else []
    kept += [f"finished cases are in {folder}"] if run else []
    log = folder / LOG
    if exists(log):
        # it knows more than a status where no rank could say anything
        by_exit = all(failure.how.startswith(EXITED) for failure in end.failures or end.ended)
        text = log_text(log, unknown=nobody_said and by_exit)
        kept.append(f"the launcher's own messages are in {log}{text}")
    return kept


def broken_reason(
    end: WorldEnd, reported: str | None, when: str, raised: Sequence[RankEnd] = ()
) -> str:
    """Why a world broke: what ranks `reported` or `raised`, completed by what their parent has
    seen; else the latter and `when`."""
    if end.cause is not None:
        return f"{end.cause} {when}"
    for failure in end.failures:
        if own := next((each for each in raised if each.process == failure.process), None):
            return str(own)
        # rank 0 only sees that a process is gone
        if reported is not None and failure.process in reported:
            return reported.replace(f"{failure.process} has ended", str(failure))
    # a rank that ends because of an error has left the reason; only the parent knows what has
    # killed a rank
    reported = reported or next(map(str, raised), None)
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
            write_json(folder / RECORD, run | {"status": "interrupted", "exit_status": status})
    if not run:
        _remove_log(folder)


def _remove_log(folder: Path) -> None:
    with suppress(OSError):
        (folder / LOG).unlink(missing_ok=True)
