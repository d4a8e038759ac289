"""Which processes of a world ended first: a launcher that loses one ends the others within milliseconds."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress


class Deaths:
    """Sleeps until a process ends, without being its parent: by pidfds (Linux 5.3); without those it knows nothing."""

    def __init__(self, launcher: subprocess.Popen[bytes]) -> None:
        self._launcher = launcher
        self._poll = select.poll()
        self._names: dict[int, str] = {}  # by file descriptor
        self.first: list[str] = []
        self._seen = False
        self._own = self._open(launcher.pid)

    def watch(self, names: Mapping[int, str]) -> None:
        """By process id, how to call it."""
        for pid, name in names.items():
            descriptor = self._open(pid)
            if descriptor is not None:
                self._names[descriptor] = name

    def wait(self, timeout_s: float) -> bool:
        """Until something ends, or the time is over; whether the launcher has ended."""
        if self._own is None:
            time.sleep(min(timeout_s, 0.2))
        else:
            ended = [descriptor for descriptor, _ in self._poll.poll(1000 * timeout_s)]
            names = [self._names[one] for one in ended if one in self._names]
            if not self._seen and len(names) < len(self._names):  # all in one moment: nobody was first
                self.first = names
            self._seen = self._seen or bool(names)
            for one in ended:
                self._poll.unregister(one)
        return self._launcher.poll() is not None

    def close(self) -> None:
        for descriptor in (*self._names, *([] if self._own is None else [self._own])):
            os.close(descriptor)

    def _open(self, pid: int) -> int | None:
        with suppress(OSError, AttributeError):
            descriptor = os.pidfd_open(pid)
            self._poll.register(descriptor, select.POLLIN)
            return descriptor
        return None
