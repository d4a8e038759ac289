"""A soak measures all the time: a thread adds its stamps to its timeline and saves them while the next block runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Queue

import numpy as np
from numpy.typing import NDArray

from .samples import LATE, Counts, Timeline
from .statistics import Series

FLUSH_S = 5.0  # of a soak: what an interruption could lose
SOAK_BLOCK_S = 1.0  # the longest time without a decision
CHECK_SHARE = 0.003  # of a soak, which the checks of its payload may take
MOST_WAITING = 6  # blocks; beyond it the ranks wait for the thread, which counts as unmeasured
RUNNING_TIMES = 10_000  # evenly spaced ones, from which the row of an unfinished soak is made
SWITCH_S = 1e-4  # the longest that the thread keeps the GIL from the loop that measures


class SoakTimeline(Timeline):
    """A timeline whose measured repetitions are added by a thread. `close` waits for it; read nothing before."""

    def __init__(self, headline: str, ranks: Sequence[int], senders: Sequence[int], interval_s: float) -> None:
        super().__init__(headline, ranks, senders, interval_s)
        self._waiting: Queue[Callable[[], None]] = Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None  # of the thread

    def add(self, phase: str, stamps: NDArray[np.int64], times: Series | None = None) -> None:
        add = partial(super().add, phase, stamps, times)
        if phase in ("measure", LATE):
            self.later(add)
        else:  # what is decided during the warm-up depends on its times
            add()

    def add_parts(self, phase: str, parts: Sequence[NDArray[np.int64]], rows: Sequence[int]) -> None:
        if phase == "measure":  # the thread copies them, too
            self.later(lambda: super(SoakTimeline, self).add(phase, np.concatenate(parts, axis=0)[list(rows)]))
        else:
            super().add_parts(phase, parts, rows)

    def count(self, counts: Counts) -> None:
        self.later(partial(super().count, counts))

    def close(self) -> None:
        self._waiting.join()
        self._raise_error()
        super().close()

    def later(self, function: Callable[[], None]) -> None:
        """Call a function in the thread, after those before it. Raises what one of them has raised."""
        self._raise_error()
        if self._thread is None:
            sys.setswitchinterval(SWITCH_S)
            self._thread = threading.Thread(target=self._call_all, name="commbench-soak", daemon=True)
            self._thread.start()
        self._waiting.put(function)

    def _call_all(self) -> None:
        while True:
            function = self._waiting.get()
            try:
                if self._error is None:
                    function()
            except BaseException as error:  # raised again in the main thread
                self._error = error
            finally:
                self._waiting.task_done()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


@dataclass
class Pace:
    """When a soak is saved, and when its payload is checked. Times of time.monotonic(); `check_s` is of one check."""

    begun_s: float = 0.0
    saved_s: float = 0.0
    checked_s: float = 0.0
    check_s: float = 0.0

    def begin(self) -> float:
        """Begin now; returns the time spent so far, 0."""
        self.begun_s = self.saved_s = self.checked_s = time.monotonic()
        return 0.0

    def save_due(self, now_s: float) -> bool:
        due = now_s - self.saved_s >= FLUSH_S
        self.saved_s = now_s if due else self.saved_s
        return due

    def check_due(self, now_s: float) -> bool:
        """A check includes filling the buffers again, which takes about as long."""
        due = now_s - self.checked_s >= max(FLUSH_S, 2 * self.check_s / CHECK_SHARE)
        self.checked_s = now_s if due else self.checked_s
        return due
