"""Signals that are acted on in time, also while the main thread is inside a library's call.

Python runs a signal's handler in the main thread, between two of its instructions: never, while that thread waits
in C for a rank that is gone. The interpreter's C part however writes each signal into a pipe at once, and a second
thread reads it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 1.0  # for the main thread to come back from C by itself
INTERRUPTED = 128  # + the signal's number: 130 and 143

Save = Callable[[int], None]


@contextmanager
def beacon(save: Save) -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt and SystemExit(143) in the main thread, which must be the caller.

    Where it is stuck for longer than PATIENCE_S, `save` is called with the exit status from the second thread, and
    the process ends with that status.
    """
    watch = _Watch(save)
    ours = {signal.SIGTERM: watch.handle, signal.SIGINT: watch.handle}
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}
    wakeup = signal.set_wakeup_fd(watch.write_end, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        watch.end()


class _Watch:
    def __init__(self, save: Save) -> None:
        self._save = save
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self.write_end, False)
        self._handled, self._turn = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="beacon", daemon=True)
        self._thread.start()

    def handle(self, number: int, frame: Any) -> None:
        """In the main thread: it has come back."""
        if not self._turn.acquire(blocking=False):
            if self._handled.is_set():
                return  # a second signal while the first one unwinds
            time.sleep(2 * PATIENCE_S + 60)  # the other thread saves and ends the process
        self._handled.set()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(INTERRUPTED + number)

    def end(self) -> None:
        os.close(self.write_end)
        self._thread.join()
        os.close(self._read_end)

    def _watch(self) -> None:
        while True:
            read = os.read(self._read_end, 1)
            if not read:
                return
            if read[0] in (signal.SIGINT, signal.SIGTERM):
                self._wait(read[0])

    def _wait(self, number: int) -> None:
        if self._handled.wait(PATIENCE_S) or not self._turn.acquire(blocking=False):
            return
        try:
            self._save(INTERRUPTED + number)
        finally:
            os._exit(INTERRUPTED + number)
