"""A world as its parent sees it: its launcher, the ranks on this machine, and how each of them has
ended.

A `RunningWorld` was started by a command (`LaunchedWorld`: torchrun, mpirun, srun, ssh), or forked
by a rank server (`ForkedWorld` in rank_server.py).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar

import psutil

from commbench.hardware.sources import MASKED

from .processes import exit_code
from .signals import die_with_parent

AT_ONCE_S = 0.2  # between the ends of ranks that one process has killed


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
                    self.codes[pid] = exit_code(descriptor, pid)
        return ended

    def _see_ends(self, timeout_s: float) -> list[int]:
        """Sleep until something ends; returns the ranks that have, and keeps their exit codes."""
        ended = []
        for descriptor, _ in self._poll.poll(1000 * timeout_s):
            self._poll.unregister(descriptor)
            if (pid := self._pids[descriptor]) in self.ranks:
                self.codes[pid] = exit_code(descriptor, pid)
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
