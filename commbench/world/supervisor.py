"""The parent of a world: waits for its launcher, sees which rank ends first, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from .exit_protocol import FAILURE_FILE, LOST

STARTUP_POLL_S = 0.5
POLL_S = 1.0
TERMINATE_S = 10.0  # between SIGTERM and SIGKILL
BROKEN_TERMINATE_S = 2.0  # where rank 0 has ended already, and a launcher waits for a rank that is stopped
# what MPI libraries leave in /dev/shm when their ranks are killed
MPI_SHARED_MEMORY = re.compile(r"/dev/shm/(?:mpich_shm_|sm_segment\.|vader_segment\.|ucx_shm_posix_)\S+")


def supervise(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[int, list[str]]:
    """Run the launcher to its end; its status, and the ranks that ended before all others.

    A signal to this process ends the world, so that no rank outlives its parent.
    """
    for late_message in (LOST, FAILURE_FILE):  # of an earlier world
        with suppress(OSError):
            (folder / late_message).unlink()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    exits, shared_memory = ExitWatcher(process), set[Path]()
    with _sigterm_raises():
        try:
            _wait(process, exits, folder, shared_memory)
        except BaseException:
            _terminate(process)
            raise
        finally:
            exits.close()
            remove_shared_memory(shared_memory)
    return process.returncode, exits.first


def _wait(process: subprocess.Popen[bytes], exits: ExitWatcher, folder: Path, shared_memory: set[Path]) -> None:
    """Until the launcher has ended, or the run is broken; collects the shared memory of the ranks."""
    broken = watched = False
    while not exits.wait(POLL_S if watched else STARTUP_POLL_S):
        if broken:  # launchers wait for half a minute for a rank that is stopped, or for ever
            _terminate(process, BROKEN_TERMINATE_S)
            return
        try:
            run = json.loads((folder / "run.json").read_text())
        except (OSError, ValueError):
            run = {}
        running = run.get("exit_status") is None
        if not watched:
            # empty before the ranks have recorded their process ids, and after the run
            names = {int(pid): name for pid, name in (run.get("processes") or {}).items()} if running else {}
            exits.watch(names)
            # ranks that are not recorded yet may be killed, too
            shared_memory |= mapped_shared_memory(names or [child.pid for child in _descendants(process.pid)])
            watched = bool(names)
        broken = (folder / LOST).exists() or (run.get("status") == "broken" and not running)


class ExitWatcher:
    """Sleeps until a process ends, without being its parent, and knows which ended first: a launcher that loses one
    ends the others within milliseconds. Uses pidfds (Linux 5.3); without those it only waits for the launcher."""

    def __init__(self, launcher: subprocess.Popen[bytes]) -> None:
        self._launcher = launcher
        self._poll = select.poll()
        self._names: dict[int, str] = {}  # by file descriptor
        self.first: list[str] = []
        self._one_ended = False
        self._launcher_fd = self._open(launcher.pid)

    def watch(self, names: Mapping[int, str]) -> None:
        """Watch these processes; names by process id."""
        for pid, name in names.items():
            descriptor = self._open(pid)
            if descriptor is not None:
                self._names[descriptor] = name

    def wait(self, timeout_s: float) -> bool:
        """Until a process ends, or the time is over; whether the launcher has ended."""
        if self._launcher_fd is None:
            time.sleep(min(timeout_s, 0.2))
        else:
            ended = [descriptor for descriptor, _ in self._poll.poll(1000 * timeout_s)]
            names = [self._names[descriptor] for descriptor in ended if descriptor in self._names]
            if not self._one_ended and len(names) < len(self._names):  # where all end at once, nobody was first
                self.first = names
            self._one_ended = self._one_ended or bool(names)
            for descriptor in ended:
                self._poll.unregister(descriptor)
        return self._launcher.poll() is not None

    def close(self) -> None:
        for descriptor in (*self._names, *([] if self._launcher_fd is None else [self._launcher_fd])):
            os.close(descriptor)

    def _open(self, pid: int) -> int | None:
        with suppress(OSError, AttributeError):
            descriptor = os.pidfd_open(pid)
            self._poll.register(descriptor, select.POLLIN)
            return descriptor
        return None


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM raises SystemExit, so that whoever waits for the world ends it."""

    def handler(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _terminate(process: subprocess.Popen[bytes], patience_s: float = TERMINATE_S) -> None:
    """End the launcher and all that it has started, also what no longer reacts."""
    descendants = _descendants(process.pid)
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for descendant in descendants:  # psutil compares start times: never another process with the same number
        with suppress(psutil.Error):
            descendant.kill()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def mapped_shared_memory(pids: Iterable[int]) -> set[Path]:
    """The MPI libraries' files in /dev/shm that these processes have mapped, and that still have a name."""
    found: set[Path] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended, or belongs to another user
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            matches = (MPI_SHARED_MEMORY.search(line) for line in lines if not line.endswith("(deleted)"))
            found |= {Path(match[0]) for match in matches if match is not None}
    return found


def remove_shared_memory(files: Iterable[Path]) -> None:
    """Once the world that had them is gone."""
    for file in files:
        with suppress(OSError):
            file.unlink()
