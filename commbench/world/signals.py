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
from functools import partial
from typing import Any

PATIENCE_S = 1.0  # for the main thread to come back from C by itself
SAVE_S = 10.0  # for what is saved at the end; a file system may be what has hung
INTERRUPTED = 128  # + the signal's number: 130 and 143

Save = Callable[[int], None]
Notice = Callable[[int], bool]


@contextmanager
def beacon(save: Save, noticed: Notice) -> Iterator[Watch]:
    """SIGINT and SIGTERM raise KeyboardInterrupt and SystemExit(143) in the main thread, which must be the caller.

    `noticed` is told the signal's number at once, in the second thread; it says whether there is hope. Without hope, or
    where the main thread is stuck for longer than PATIENCE_S, `save` is called with the exit status from there, and
    the process ends with that status.
    """
    watch = Watch(save, noticed)
    ours = {signal.SIGTERM: watch.handle, signal.SIGINT: watch.handle}
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}
    wakeup = signal.set_wakeup_fd(watch.write_end, warn_on_full_buffer=False)
    try:
        yield watch
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        watch.end()


class Watch:
    """Lets one thread end the run, and no other one with it."""

    def __init__(self, save: Save, noticed: Notice) -> None:
        self._save, self._noticed = save, noticed
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
            _wait_for_the_end()
        self._handled.set()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(INTERRUPTED + number)

    def claim(self) -> None:
        """In the main thread, when it ends the run for a reason of its own."""
        if not self._handled.is_set() and not self._turn.acquire(blocking=False):
            _wait_for_the_end()
        self._handled.set()

    def finish(self, status: int, save: Callable[[], None]) -> None:
        """In another thread: save, and end the process, unless somebody is at it already."""
        if not self._turn.acquire(blocking=False):
            return
        threading.Timer(SAVE_S, os._exit, [status]).start()
        try:
            save()
        finally:
            os._exit(status)

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
                patience_s = PATIENCE_S if self._noticed(read[0]) else 0.0
                if not self._handled.wait(patience_s):
                    self.finish(INTERRUPTED + read[0], partial(self._save, INTERRUPTED + read[0]))


def _wait_for_the_end() -> None:
    """The other thread saves, and then ends this process."""
    time.sleep(6 * SAVE_S)
