"""The native engine: a compiled loop over a table of C calls, with the stamps of every repetition.

A row is an address and its integer arguments, so the engine fits any C library. Addresses are passed at run time and
not compiled in, so that numba can cache the compiled loop on disk for the next launch.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import CommunicationError

from .loop import sleep_until
from .lowered import Lowered, NativeCall, call_table


class NativeRunner:
    """See Runner; hosts one rank. `keep` holds the memory that the arguments point to."""

    engine = "native"

    def __init__(self, calls: Lowered[NativeCall], pool: int, keep: object) -> None:
        from .native_loop import run  # numba takes 0.3 s to import

        self.progress = np.zeros(2, dtype=np.int64)
        self._run, self._keep = run, keep
        self.calls = tuple(call.name for call in calls.steps)
        self._enter = call_table(calls.enter, 1)
        self._before = call_table(calls.before, pool)
        self._timed = call_table(calls.steps, pool)
        self._windowed = calls.windowed
        self._clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value

    def __call__(self, n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        if (starts is not None) != self._windowed:
            raise ValueError("start instants are required for programs prepared with sync=window, and only for those")
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        failed = np.full(2, -1, dtype=np.int64)  # step, code
        timespec = np.zeros(2, dtype=np.int64)
        clock = (self._clock, time.CLOCK_MONOTONIC, timespec)
        no_starts, unused_stamps = np.zeros(0, dtype=np.int64), np.zeros((1, 2), dtype=np.int64)
        self._run(self._enter, call_table((), 1), *clock, no_starts, unused_stamps, self.progress, failed)
        entered = failed[0] < 0
        if entered:
            if starts is not None:
                sleep_until(int(starts[0]))
            instants = no_starts if starts is None else starts
            self._run(self._before, self._timed, *clock, instants, stamps[0], self.progress, failed)
        if failed[0] >= 0:
            step = self.calls[failed[0]] if entered and failed[0] < len(self.calls) else "synchronisation"
            raise CommunicationError(f"{step} returned {failed[1]} in repetition {self.progress[0]}")
        return stamps
