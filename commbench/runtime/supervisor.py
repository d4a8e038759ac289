"""The parent of a world: waits for its end, finds out which rank failed first and how, and leaves
nothing behind.

A `RunningWorld` was started by a command (torchrun, mpirun, srun), or forked by a rank server
(rank_server.py).
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil

from commbench.core.errors import WorldBroken
from commbench.core.terminal import print_error
from commbench.hardware import resource_limits
from commbench.hardware.sources import MASKED
from commbench.results.run_folder import exists, read_record

from .exit_protocol import (
    RankEnd,
    RankFailure,
    WorldEnd,
    exit_text,
    has_ended,
    has_refused,
    is_broken,
    process_text,
    read_ends,
)
from .heartbeat import STOPPED, stat_fields
from .output import LOG, Output
from .signals import SAVE_S, SIGNAL_STATUS, die_with_parent

# pidfd_info of linux/pidfd.h (Linux 6.15): how a process ended, also for those that are not its
# parent
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3
PIDFD_INFO = "QQ11Ii"
UNRECORDED_POLL_S = 0.5
NO_RANK_S = 180.0  # ranks that have started end by limits of their own before
POLL_S = 1.0
STATES_S = 1.0  # between two readings of the states of all processes
REFUSED_S = 15.0  # between the end of a rank that has refused the run and that of its world
AT_ONCE_S = 0.2  # between the ends of ranks that one process has killed
EARLY_S = 3.0  # between the end of a rank and that of its world, where the run has not ended
TERMINATE_S = 10.0  # between SIGTERM and SIGKILL
# where rank 0 has ended already, or a launcher waits for a rank that is stopped
BROKEN_TERMINATE_S = 2.0
PROCESS_LIMIT = (
    "meanwhile the control group was refused more processes or threads: raise its pids.max"
)
# what MPI libraries leave in /dev/shm when their ranks are killed
MPI_SHARED_MEMORY = re.compile(
    r"/dev/shm/(?:mpich_shm_|sm_segment\.|vader_segment\.|ucx_shm_posix_)\S+"
)


class RunningWorld(ABC):
    """A world as its parent sees it. `pid` and `name` are the launcher's; `ranks` are those on this
    machine that are known by now, by process id.

    `status` is the launcher's exit status, as subprocess counts, once it has ended.
    """

    pid: int
    name: str
    status: int | None = None
    kills_ranks: ClassVar[bool] = True  # whether the launcher may have killed ranks

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}
        # of ranks that have ended: as subprocess counts, None where unknown
        self.codes: dict[int, int | None] = {}
        # ranks that this process has killed, because they did not end in time
        self.killed_here = set[int]()

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    @abstractmethod
    def wait(self, timeout_s: float) -> list[int]:
        """Sleep until something ends; returns the process ids of the ranks that have ended
        meanwhile."""

    @abstractmethod
    def end(self, patience_s: float) -> None:
        """End the launcher and the ranks on this host; SIGKILL for what is left after this time."""

    def signal_ranks(self, number: int) -> bool:
        """Signal rank 0 first: it must not take the others' end for a failure. Returns whether any
        rank is known."""
        running = [
            pid for pid in sorted(self.ranks, key=self.ranks.__getitem__) if pid not in self.codes
        ]
        self.killed_here |= set(running) if number == signal.SIGKILL else set()
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(running)

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until the launcher has ended, for at most this time."""
        until = time.monotonic() + timeout_s
        while self.status is None and time.monotonic() < until:
            self.wait(min(0.5, until - time.monotonic()))

    def close(self) -> None:  # noqa: B027
        """Release what the parent holds of a world that has ended."""


class LaunchedWorld(RunningWorld):
    """Ranks that a command starts, and that print to the descriptor `output`. `rank_of` recognises
    a rank by its environment, `size` is the number of ranks on this host, 0 if they are not its
    descendants.

    The launcher has a process group of its own: what a terminal sends reaches the parent only,
    which then ends the world in order. Uses pidfds (Linux 5.3); without those only the launcher's
    end is seen.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        rank_of: Callable[[Mapping[str, str]], int | None],
        size: int,
    ) -> None:
        super().__init__()
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=partial(_detach, os.getpid()),
        )
        self.pid = self._process.pid
        self.name = name
        self._rank_of = rank_of
        self._size = size
        self._poll = select.poll()
        self._pids: dict[int, int] = {}  # by file descriptor
        self._processes: list[psutil.Process] = []
        self._watch(self.pid)

    def wait(self, timeout_s: float) -> list[int]:
        if len(self.ranks) < self._size:
            self._find_ranks()
            timeout_s = min(timeout_s, 0.2)
        ended = self._see_ends(timeout_s)
        self.status = self._process.poll()
        until = time.monotonic() + AT_ONCE_S
        while (
            self.status is not None
            and len(self.codes) < len(self.ranks)
            and time.monotonic() < until
        ):
            ended += self._see_ends(AT_ONCE_S)  # ranks that the launcher has killed before it ended
        if self.status is not None:
            # known to the kernel only once the launcher has waited
            for descriptor, pid in self._pids.items():
                if pid in self.codes and self.codes[pid] is None:
                    self.codes[pid] = _exit_code(descriptor, pid)
        return ended

    def _see_ends(self, timeout_s: float) -> list[int]:
        """Sleep until something ends; returns the ranks that have, and keeps their exit codes."""
        ended = []
        for descriptor, _ in self._poll.poll(1000 * timeout_s):
            self._poll.unregister(descriptor)
            if (pid := self._pids[descriptor]) in self.ranks:
                self.codes[pid] = _exit_code(descriptor, pid)
                ended.append(pid)
        return ended

    def end(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        if self.status is None:
            self._find_ranks()
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # if it is stopped
            self.wait_for_end(patience_s)
        if self.status is None:
            self._process.kill()
            self.status = self._process.wait()
        self.signal_ranks(signal.SIGTERM)  # it may have left them alive
        for process in psutil.wait_procs(self._processes, max(0.0, until - time.monotonic()))[1]:
            # psutil compares start times: never another process with the same number
            with suppress(*MASKED):
                process.kill()

    def close(self) -> None:
        for descriptor in self._pids:
            os.close(descriptor)

    def _find_ranks(self) -> None:
        """Find ranks at any depth: those of mpirun are children of its daemon."""
        with suppress(*MASKED):
            self._processes = psutil.Process(self.pid).children(recursive=True)
        for process in self._processes:
            with suppress(*MASKED):
                rank = self._rank_of(process.environ())
                if (
                    rank is not None
                    and rank not in self.ranks.values()
                    and self._watch(process.pid)
                ):
                    self.ranks[process.pid] = rank

    def _watch(self, pid: int) -> bool:
        with suppress(OSError, AttributeError):
            descriptor = os.pidfd_open(pid)
            self._poll.register(descriptor, select.POLLIN)
            self._pids[descriptor] = pid
            return True
        return False


def _detach(parent: int) -> None:
    """Give the launcher a process group of its own, and have it ended when its parent dies."""
    os.setpgid(0, 0)
    die_with_parent(signal.SIGTERM, parent)


def _exit_code(pidfd: int, pid: int) -> int | None:
    """How another process's child ended: from the kernel (Linux 6.15), or from the process while it
    is a zombie."""
    info = bytearray(struct.pack(PIDFD_INFO, PIDFD_INFO_EXIT, *[0] * 13))
    with suppress(OSError):
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info, True)
        mask, *_, status = struct.unpack(PIDFD_INFO, info)
        if mask & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
    with suppress(OSError, ValueError):
        fields = stat_fields(pid)
        return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None
    return None


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
    finished, and is raised again as KeyboardInterrupt or SystemExit once the world is gone.
    """

    def stop_here(number: int, frame: Any) -> None:
        raise SystemExit(SIGNAL_STATUS + number)

    # SIGHUP stays ignored under nohup
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    handlers = {number: signal.signal(number, stop_here) for number in numbers}
    try:
        with output:
            supervisor = _Supervisor(start(), folder, ends_file, stopped_s, closing_s)
            try:
                supervisor.wait()
            except (KeyboardInterrupt, SystemExit) as stop:
                supervisor.interrupt(stop)
                raise
            finally:
                supervisor.close()
    finally:
        for number, previous in handlers.items():
            signal.signal(number, previous)
    return supervisor.end()


class _Supervisor:
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
        self._run_ended_at: float | None = None
        self._unclosed: str | None = None
        self._shared_memory = set[Path]()
        self._first: list[int] = []  # process ids of the ranks that ended before all others
        self._ended_at: float | None = None  # since when a rank is gone
        self._last_ended_at = 0.0
        self._stopped: dict[int, float] = {}  # since when, by process id
        self._failure: RankFailure | None = None
        self._cause: str | None = None  # what happened to the launcher
        self._states_at = time.monotonic()
        self._oom_kills = resource_limits.oom_kills()
        self._refusals = resource_limits.process_refusals()
        self._has_record = False  # whether run.json was ever there: the folder may vanish
        self._no_rank_at: float | None = time.monotonic() + NO_RANK_S  # None: it has been said

    def wait(self) -> None:
        """Wait until the launcher has ended, or the world is broken and has been ended."""
        world = self._world
        has_processes = False  # run.json names the processes of the ranks
        while world.status is None:
            ended = world.wait(POLL_S if has_processes else UNRECORDED_POLL_S)
            self._last_ended_at = time.monotonic() if ended else self._last_ended_at
            # where all end at once, nobody was first
            if ended and not self._first and len(ended) < len(world.ranks):
                self._first = ended
                self._ended_at = self._last_ended_at
            run = read_record(self._folder)
            ends = read_ends(self._ends_file)
            if world.status is not None:
                self._see_launchers_end(world.status, is_broken(ends, run))
                return
            if (ended or self._first) and (stopped := _how_stopped(world.pid)):  # the ranks miss it
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

    def _see_launchers_end(self, status: int, broken: bool) -> None:
        """End the ranks of a launcher that a signal has ended. It is the cause, unless it returns
        the status of ranks that it has ended, as srun does: one that is killed breaks the world
        itself."""
        if status in (*range(-64, 0), SIGNAL_STATUS + signal.SIGTERM):
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
        if self._has_record or exists(self._folder / "run.json"):
            if self._world.signal_ranks(number):
                self._world.wait_for_end(SAVE_S)
            if self._world.status is None:
                self._world.end(TERMINATE_S)

    def close(self) -> None:
        """Leave nothing of the world behind, however it ended, also after a second Ctrl-C."""
        if self._world.status is None:
            self._world.end(0.0)
        self._world.close()
        remove_shared_memory(self._shared_memory)

    def end(self) -> WorldEnd:
        world = self._world
        first = [] if self._failure else self._first_to_fail()
        # the kernel has killed a process of this control group meanwhile
        memory_was_short = resource_limits.oom_kills() > self._oom_kills
        ended = {pid: self._rank_end(pid, memory_was_short) for pid in world.codes}
        failures = [ended[pid] for pid in first]
        failures += [self._failure] if self._failure else []
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
        own = [
            pid
            for pid in codes
            if codes[pid] not in (0, None, -signal.SIGTERM, SIGNAL_STATUS + signal.SIGTERM)
        ]
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
        states = {pid: stopped for pid in running if (stopped := _how_stopped(pid))}
        self._stopped = {pid: before.get(pid, now) for pid in states}
        for pid, since in self._stopped.items():
            if now - since >= self._stopped_s:
                if pid == world.pid:
                    self._cause = f"{world} {states[pid]}"
                else:
                    self._failure = RankFailure(world.ranks[pid], pid, states[pid])
                return True
        return False


def _how_stopped(pid: int) -> str | None:
    """How a process is stopped, in words; None if it runs or is gone."""
    with suppress(OSError):
        return STOPPED.get(stat_fields(pid)[0])
    return None


# ---------------------------------------------------------------- shared memory


def mapped_shared_memory(pids: Iterable[int]) -> set[Path]:
    """The MPI libraries' files in /dev/shm that these processes have mapped, unless they are
    deleted already."""
    files: set[Path] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended, or belongs to another user
            text = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
            lines = text.splitlines()
            matches = (
                MPI_SHARED_MEMORY.search(line) for line in lines if not line.endswith("(deleted)")
            )
            files |= {Path(match[0]) for match in matches if match is not None}
    return files


def remove_shared_memory(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):  # already gone
            file.unlink()
