"""The parent of a world: waits for its end, finds out which rank failed first and how, and leaves
nothing behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from commbench.core.errors import WorldBroken
from commbench.core.terminal import print_error
from commbench.hardware import resource_limits
from commbench.results.run_folder import RECORD, exists, read_record

from .exit_protocol import RankEnd, process_text, read_ends
from .output import LOG, Output
from .processes import how_stopped, mapped_shared_memory, remove_shared_memory
from .running_world import AT_ONCE_S, RunningWorld
from .signals import SAVE_S, SIGNAL_STATUS, set_handlers
from .world_end import (
    TERMINATED,
    RankFailure,
    WorldEnd,
    exit_text,
    has_ended,
    has_refused,
    is_broken,
)

UNRECORDED_POLL_S = 0.5
NO_RANK_S = 180.0  # ranks that have started end by limits of their own before
POLL_S = 1.0
STATES_S = 1.0  # between two readings of the states of all processes
REFUSED_S = 15.0  # between the end of a rank that has refused the run and that of its world
EARLY_S = 3.0  # between the end of a rank and that of its world, where the run has not ended
TERMINATE_S = 10.0  # between SIGTERM and SIGKILL
# where rank 0 has ended already, or a launcher waits for a rank that is stopped
BROKEN_TERMINATE_S = 2.0
# faults of the rank itself: a launcher ends the others by SIGTERM and SIGKILL
CRASHES = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)
PROCESS_LIMIT = (
    "meanwhile the control group was refused more processes or threads: raise its pids.max"
)


def supervise(
    start: Callable[[], RunningWorld],
    output: Output,
    folder: Path,
    ends_file: Path,
    stopped_s: float,
    closing_s: float,
) -> WorldEnd:
    """Start a world and wait for its end, and until `output` has printed all of it.

    Its ranks say in `ends_file` how they ended. A process that is stopped for
    longer than `stopped_s` ends the world, and so do ranks that live for longer than `closing_s`
    after the end of their run.

    A signal to this process (SIGINT, SIGTERM, SIGHUP) interrupts the ranks, which save what is
    finished, and is raised again as KeyboardInterrupt or SystemExit once the world is gone. SIGTSTP
    (Ctrl-Z) suspends them with it.
    """

    def stop_here(number: int, frame: Any) -> None:
        raise SystemExit(SIGNAL_STATUS + number)

    # SIGHUP stays ignored under nohup
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    handlers = set_handlers(dict.fromkeys(numbers, stop_here))
    try:
        with output:
            supervisor = _Supervisor(start(), folder, ends_file, stopped_s, closing_s)
            if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
                handlers |= set_handlers({signal.SIGTSTP: supervisor.suspend})
            try:
                supervisor.wait()
            except (KeyboardInterrupt, SystemExit) as stop:
                supervisor.interrupt(stop)
                raise
            finally:
                supervisor.close()
    finally:
        set_handlers(handlers)
    return supervisor.end()


class _Supervisor:
    """Watches one world, about once a second: its processes, what its ranks say in `ends_file`, and
    run.json. It ends a world that is broken, has lost a rank, has a stopped process, or does not
    close; then `end` tells who was first."""

    def __init__(
        self,
        world: RunningWorld,
        folder: Path,
        ends_file: Path,
        stopped_s: float,
        closing_s: float,
    ) -> None:
        self._world = world
        self._folder = folder
        self._ends_file = ends_file
        self._stopped_s = stopped_s
        self._closing_s = closing_s
        self._shared_memory = set[Path]()
        # ranks that have ended
        self._first: list[int] = []  # process ids of those that ended before all others
        self._ended_at: float | None = None  # since when a rank is gone
        self._last_ended_at = 0.0
        # processes that are stopped
        self._stopped: dict[int, float] = {}  # since when, by process id
        self._states_at = time.monotonic()
        # what the system did meanwhile
        self._oom_kills = resource_limits.oom_kills()
        self._refusals = resource_limits.process_refusals()
        # the run
        self._has_record = False  # whether run.json was ever there: the folder may vanish
        self._no_rank_at: float | None = time.monotonic() + NO_RANK_S  # None: it has been said
        self._run_ended_at: float | None = None
        # why the world was ended
        self._failure: RankFailure | None = None
        self._cause: str | None = None  # what happened to the launcher
        self._unclosed: str | None = None

    def wait(self) -> None:
        """Wait until the launcher has ended, or the world is broken and has been ended."""
        world = self._world
        has_processes = False  # run.json names the processes of the ranks
        while world.status is None:
            ended = world.wait(POLL_S if has_processes else UNRECORDED_POLL_S)
            if ended:
                self._see_ended(ended)
            run = read_record(self._folder)
            ends = read_ends(self._ends_file)
            if world.status is not None:
                self._see_launchers_end(world.status, is_broken(ends, run))
                return
            if (ended or self._first) and (stopped := how_stopped(world.pid)):  # the ranks miss it
                self._cause = f"{world} {stopped}"
            self._has_record |= bool(run)
            if not has_processes:  # ranks that are not recorded yet may be killed, too
                self._shared_memory |= mapped_shared_memory(world.ranks)
                has_processes = not {str(pid) for pid in world.ranks}.isdisjoint(
                    run.get("processes") or ()
                )
                self._report_missing_ranks()
            patience_s = self._patience_s(ends, run)
            if patience_s is not None:
                world.end(patience_s)

    def _see_ended(self, ranks: list[int]) -> None:
        """Remember which ranks were first; where all end at once, nobody was."""
        self._last_ended_at = time.monotonic()
        if not self._first and len(ranks) < len(self._world.ranks):
            self._first = ranks
            self._ended_at = self._last_ended_at

    def _see_launchers_end(self, status: int, broken: bool) -> None:
        """End the ranks of a launcher that a signal has ended. It is the cause, unless it returns
        the status of ranks that it has ended, as srun does: one that is killed breaks the world
        itself."""
        if status < 0 or status in TERMINATED:
            if status < 0 or not broken:
                self._cause = f"{self._world} {exit_text(status)}"
            self._world.end(BROKEN_TERMINATE_S)

    def _patience_s(self, ends: Sequence[RankEnd], run: Mapping[str, Any]) -> float | None:
        """How long a world that must end may take; None for one that may go on."""
        has_end = has_ended(ends, run)
        gone_s = 0.0 if self._ended_at is None else time.monotonic() - self._ended_at
        if is_broken(ends, run) or (has_end and self._is_overdue(ends)):
            return BROKEN_TERMINATE_S
        if gone_s > EARLY_S and not has_end:  # even with status 0: the others wait for it
            return TERMINATE_S
        # launchers may wait forever for a stopped rank
        return BROKEN_TERMINATE_S if self._find_stopped() else None

    def _report_missing_ranks(self) -> None:
        """Say once that no rank has reported. The launcher may rightly wait, for an allocation, so
        this ends nothing."""
        if self._no_rank_at is None or time.monotonic() < self._no_rank_at:
            return
        self._no_rank_at = None
        if not self._world.ranks and not self._has_record:
            print_error(
                f"{self._world}: no rank has reported for {NO_RANK_S:g} s; it may wait for a host"
                f" (ssh) or for an allocation; its own messages are in {self._folder / LOG};"
                " Ctrl-C ends it"
            )

    def interrupt(self, stop: KeyboardInterrupt | SystemExit) -> None:
        """Let the ranks save what is finished; `close` ends a world that has measured nothing."""
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
        if self._has_record or exists(self._folder / RECORD):
            if self._world.signal_ranks(number):
                self._world.wait_for_end(SAVE_S)
            if self._world.status is None:
                self._world.end(TERMINATE_S)

    def suspend(self, number: int, frame: Any) -> None:
        """The handler of SIGTSTP: a terminal does not reach the ranks, which have other
        sessions."""
        self._world.signal_ranks(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._world.signal_ranks(signal.SIGCONT)

    def close(self) -> None:
        """Leave nothing of the world behind, however it ended, also after a second Ctrl-C."""
        if self._world.status is None:
            self._world.end(0.0)
        self._world.close()
        remove_shared_memory(self._shared_memory)

    def end(self) -> WorldEnd:
        world = self._world
        # the kernel has killed a process of this control group meanwhile
        memory_was_short = resource_limits.oom_kills() > self._oom_kills
        ended = {pid: self._rank_end(pid, memory_was_short) for pid in world.codes}
        first = [ended[pid] for pid in self._first_to_fail()]
        failures = [self._failure] if self._failure else first
        assert world.status is not None
        return WorldEnd(
            status=world.status,
            launcher=str(world),
            failures=tuple(failures),
            cause=self._cause,
            unclosed=self._unclosed,
            ended=tuple(ended.values()),
            limit=PROCESS_LIMIT if resource_limits.process_refusals() > self._refusals else None,
        )

    def _rank_end(self, pid: int, memory_was_short: bool) -> RankFailure:
        """How a rank has ended. SIGKILL is the kernel's where memory was short meanwhile."""
        code = self._world.codes.get(pid)
        how = exit_text(code)
        if code == -signal.SIGKILL and pid not in self._world.killed_here and memory_was_short:
            how += ", because memory was short,"
        return RankFailure(self._world.ranks[pid], pid, how)

    def _first_to_fail(self) -> list[int]:
        """The process ids of the ranks that failed first: the one that ended before the others, or
        those that the launcher has not ended. Empty where nobody knows.
        """
        codes = {
            pid: code
            for pid, code in self._world.codes.items()
            if pid not in self._world.killed_here
        }
        own = [pid for pid in codes if codes[pid] not in (0, None, *TERMINATED)]
        crashed = [pid for pid in own if codes[pid] in CRASHES]
        # a launcher may have killed the others before anybody saw the end of this one
        if crashed and crashed[0] not in self._first:
            return crashed
        if not self._first and not self._world.kills_ranks:
            return [pid for pid in own if codes[pid] != WorldBroken.exit_status] or own
        if self._launcher_may_have_killed(codes.values()):
            return []
        if len(self._first) == 1 or len(own) >= max(2, len(codes)):
            return self._first
        return own or self._first

    def _launcher_may_have_killed(self, codes: Collection[int | None]) -> bool:
        """Whether all ranks were killed at once, and the launcher's status is not that of a rank
        that was killed."""
        may_kill = self._world.kills_ranks and self._world.status != SIGNAL_STATUS + signal.SIGKILL
        at_once = self._last_ended_at - (self._ended_at or 0.0) < AT_ONCE_S
        return (
            may_kill
            and at_once
            and len(codes) > 1
            and {-signal.SIGKILL} <= {*codes} <= {-signal.SIGKILL, None}
        )

    def _is_overdue(self, ends: Sequence[RankEnd]) -> bool:
        """Whether ranks still live long after the end of their run: closing a library may take
        forever."""
        now = time.monotonic()
        world = self._world
        self._run_ended_at = self._run_ended_at or now
        closing_s = self._closing_s
        if has_refused(ends):  # there is little to close
            closing_s = min(closing_s, REFUSED_S)
        if now - self._run_ended_at < closing_s:
            return False
        left = [
            process_text(world.ranks[pid], pid=pid) for pid in world.ranks if pid not in world.codes
        ]
        self._unclosed = (
            f"{', '.join(left) or world} did not end within {closing_s:g} s of the end of the"
            " run, and was killed"
        )
        return True

    def _find_stopped(self) -> bool:
        """Whether the launcher or a rank has been stopped for `stopped_s`, also before there are
        heartbeats."""
        now = time.monotonic()
        world = self._world
        if now - self._states_at < STATES_S:
            return False
        # this process was stopped itself
        before = {} if now - self._states_at > 2 * STATES_S else self._stopped
        self._states_at = now
        running = [world.pid, *(pid for pid in world.ranks if pid not in world.codes)]
        states = {pid: stopped for pid in running if (stopped := how_stopped(pid))}
        self._stopped = {pid: before.get(pid, now) for pid in states}
        for pid, since in self._stopped.items():
            if now - since >= self._stopped_s:
                if pid == world.pid:
                    self._cause = f"{world} {states[pid]}"
                else:
                    self._failure = RankFailure(world.ranks[pid], pid, states[pid])
                return True
        return False
