"""A soak: a case is repeated for a given time, and saved and checked from time to time.

It measures all the time: a thread collects the stamps and saves the samples while the next block
runs.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.core.states import INTERRUPTED
from commbench.measure.blocks import Blocks
from commbench.measure.collector import SampleCollector
from commbench.measure.counters import CounterReader
from commbench.measure.samples import NS_PER_S, RUNNING, Counts, Samples
from commbench.measure.strategies import NextBlock, TimingStrategy
from commbench.measure.time_limits import samples_per_stamp
from commbench.measure.visit_setup import VisitSetup
from commbench.stats.series import Series

from .intervals import StartIntervals, StreamIntervals
from .ramp import RAMP_COLUMNS, Ramp, ramp_of
from .sender import sender_reader

SOAK_BLOCK_S = 1.0  # the longest time without a decision
SOAK_STAMP_S = 50e-6  # of streams another, see samples_per_stamp
MAX_SOAK_BLOCK_K = 256  # fewer stamps, as nothing is measured while they are gathered
FLUSH_S = 5.0  # between two saves
CHECK_SHARE = 0.003  # of the time that the checks of the payload may take
# a repetition in which a process was stopped or a link stood still takes at least so many seconds
# longer than usual, and so many times as long
STALL_S = 1.0
STALL_RATIO = 10
RUNNING_TIMES = 10_000  # evenly spaced, from which the row of an unfinished soak is made
MOST_WAITING = 6  # blocks; beyond it the ranks wait for the thread, which counts as unmeasured
SWITCH_S = 1e-4  # the longest time for which the thread keeps the GIL from the loop that measures


class Soak(TimingStrategy):
    """A visit goes on for a given time. All its results so far are recorded while it runs."""

    collector: SoakCollector

    def __init__(self, setup: VisitSetup) -> None:
        super().__init__(setup, SoakCollector(setup.planned, setup.settings.timing.interval_s))
        # even without one, a few calls must show how many of them go between two stamps
        no_warm_up = self.warm_up_rule.repetitions == 0 and self.warm_up_rule.seconds == 0
        self.warm_up_rule = replace(self.warm_up_rule, trial=no_warm_up)
        self._outside_s = 0.0  # of the loops of its blocks

    @property
    def findings(self) -> Mapping[str, Any]:
        ramp = self._ramp
        of_stream = {} if ramp is None else {name: of(ramp) for name, of in RAMP_COLUMNS.items()}
        duration_s = self.setup.settings.case_s
        return {"duration_s": duration_s, "unmeasured_s": self.unmeasured_s, **of_stream}

    @property
    def operation_s(self) -> float | None:
        """Of a stream the mean write: people quote its bytes over its time."""
        ramp = self._ramp
        return None if ramp is None else self._operation_bytes / ramp.mean

    @property
    def _ramp(self) -> Ramp | None:
        """How the rate of a stream rises, in B/s."""
        table = self.collector.stream_intervals
        if table is None:
            return None
        begins_s, repetitions, busy_s = table.T
        repetition_bytes = self._operation_bytes * self.collector.operations
        return ramp_of(begins_s, repetitions * repetition_bytes, busy_s)

    @property
    def _operation_bytes(self) -> float:
        shape = self.setup.planned.shape
        return shape.moved_bytes / shape.operations

    @property
    def unmeasured_s(self) -> float | None:
        """The time outside its repetitions, or in some that took far longer than usual."""
        if 0 not in self.setup.planned.active:
            return None  # rank 0, which decides, does not see how long the loops of others take
        return self._outside_s + self.collector.stalled_s

    def samples_per_stamp(self, sample_s: float) -> int:
        return samples_per_stamp(self.setup.planned, sample_s, SOAK_STAMP_S, MAX_SOAK_BLOCK_K)

    def begin(self, samples: Callable[[str], Samples], counters: CounterReader) -> None:
        counters.restart()
        counters.beside = sender_reader(self.setup)
        self._samples = samples
        self._begun_s = time.monotonic()
        self._begun_boot_s = _boot_s()
        self._saves = Timer(self._begun_s)
        self._checks = Timer(0.0)

    def next_block(self, blocks: Blocks, check_s: float) -> NextBlock:
        now_s = time.monotonic()
        block_s, model_s = self.collector.model_times_s
        each_s = (block_s or blocks.last.total_s) / blocks.last.n
        # the clock of a simulated world is ahead, unless its operations take no time
        passed_s = max(now_s - self._begun_s, model_s)
        left_s = self.setup.settings.case_s - passed_s
        if not self.setup.planned.case.has_model_clock:
            self._outside_s = max(0.0, _boot_s() - self._begun_boot_s - blocks.loop_s)
        if left_s > 0 and self._saves.due(now_s, FLUSH_S):
            self.collector.later(self._save_running)
        # the last block must not take much longer
        block_s = min(SOAK_BLOCK_S, max(left_s / 2, SOAK_BLOCK_S / 10))
        n = blocks.bounded(max(1, int(block_s / max(each_s, 1e-9))))
        # filling the buffers again takes about as long as the check
        check = self._checks.due(passed_s, max(FLUSH_S, 2 * check_s / CHECK_SHARE))
        return n, check, "duration" if left_s <= 0 else None

    def save_interrupted(self) -> None:
        if self.setup.control.rank == 0:
            self.collector.close()
            if self.collector.repetitions("measure"):
                self.setup.sink(self._samples(INTERRUPTED))

    def _save_running(self) -> None:
        """Pass the new blocks to the sink, and drop them. Called in the collector's thread."""
        times = self.collector.times("measure")
        some = times[:: -(-len(times) // RUNNING_TIMES)]
        self.setup.sink(replace(self._samples(RUNNING), series=some))
        self.collector.forget()


class SoakCollector(SampleCollector):
    """A collector whose measured repetitions are added by a thread. It can be read after `close`,
    which waits for it.

    A signal may raise in the main thread between any two of its instructions. So the thread is a
    daemon, which no exit of the process waits for, and all that it is given, its end too, comes in
    one queue whose `put` is whole or not at all (a ThreadPoolExecutor whose `submit` is interrupted
    leaves a thread that nobody ends).
    """

    def __init__(self, planned: Planned, interval_s: float) -> None:
        super().__init__(planned)
        self._has_model_clock = planned.case.has_model_clock
        self._intervals: StartIntervals | None = None
        self._of_stream: StreamIntervals | None = None
        if planned.shape.is_stream:
            self._of_stream = StreamIntervals(planned.active[self._rows[0]], interval_s)
        else:
            self._intervals = StartIntervals(next(iter(planned.active), 0), interval_s)
        self._functions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: the end
        self._places = threading.Semaphore(1 + MOST_WAITING)  # one runs
        self._error: Exception | None = None  # the first one of the thread
        self._thread: threading.Thread | None = None
        self.stalled_s = 0.0  # by how much repetitions took far longer than usual
        self.model_times_s = (0.0, 0.0)  # of the last block and of all, on the clock of a model
        self._usual_s = math.inf

    @property
    def stream_intervals(self) -> NDArray[np.float64] | None:
        """See StreamIntervals.table; None for other operations."""
        return None if self._of_stream is None else self._of_stream.table

    def add(self, phase: str, stamps: NDArray[np.int64]) -> Series:
        if phase != "measure":  # decisions during the warm-up need its times
            return super().add(phase, stamps)
        self.later(partial(self._add_measured, stamps))
        return np.zeros(0)

    def add_parts(self, phase: str, parts: Sequence[NDArray[np.int64]]) -> None:
        if phase == "measure":  # the thread also copies them
            if self._has_model_clock:
                block_s = float(np.ptp(np.concatenate(parts))) / NS_PER_S
                self.model_times_s = (block_s, self.model_times_s[1] + block_s)
            self.later(lambda: self._add_measured(np.concatenate(parts)[self._ranks]))
        else:
            super().add_parts(phase, parts)

    def _add_measured(self, stamps: NDArray[np.int64]) -> None:
        """Called in the thread."""
        times = super().add("measure", stamps)
        if self._intervals is not None:
            self.counts += self._intervals.add(stamps[0, :, 0], times, self.operations)
        if self._of_stream is not None:
            self.counts += self._of_stream.add(stamps[self._rows[0]])
        # from end to end: a barrier before the repetition may be where the time went
        instants_ns = np.concatenate([stamps[:, :1, 0], stamps[:, :, 1]], axis=1)
        steps_s = np.diff(instants_ns, axis=1).max(axis=0) / NS_PER_S
        self._usual_s = min(self._usual_s, float(np.median(steps_s)))
        excess_s = steps_s - self._usual_s
        stalled = excess_s > max(STALL_S, (STALL_RATIO - 1) * self._usual_s)
        self.stalled_s += float(excess_s[stalled].sum())

    def count(self, counts: Counts) -> None:
        self.later(partial(super().count, counts))

    def close(self) -> None:
        if self._thread is not None:
            self._functions.put(None)
            # a signal has come before it was started: then nothing was given to it
            with suppress(RuntimeError):
                self._thread.join()
        self._raise_error()
        for intervals in (self._intervals, self._of_stream):
            self.counts += [] if intervals is None else intervals.close()

    def later(self, function: Callable[[], None]) -> None:
        """Call a function in the thread, after those before it. Raises what one of them has
        raised."""
        self._raise_error()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._call_functions, name="commbench-soak", daemon=True
            )
            self._thread.start()
        self._places.acquire()
        self._functions.put(function)

    def _call_functions(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        while (function := self._functions.get()) is not None:
            try:
                function()
            except Exception as error:
                self._error = self._error or error
            finally:
                self._places.release()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _boot_s() -> float:
    """Seconds since the machine was started, also those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Timer:
    """For something that a soak does from time to time, with times of one clock."""

    last_s: float

    def due(self, now_s: float, every_s: float) -> bool:
        """Whether it is to be done now; then the time until it is due again begins."""
        is_due = now_s - self.last_s >= every_s
        self.last_s = now_s if is_due else self.last_s
        return is_due
