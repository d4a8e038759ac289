"""The engines for a GPU: work is enqueued from Python and timed in one of four modes.

host_sync     host clock around a sample and a synchronisation
device_event  GPU events around a sample
throughput    GPU events around block_k samples
graph         GPU events around the replay of a graph of block_k samples: one launch

Libraries return before the work is done, so a host clock is only valid after a synchronisation.
With events, the GPU is kept busy (`hold`) while the host enqueues a repetition, so that the time
between them includes no launch. Ranks hold for different times, so these modes have their barrier
(measure/plan.py) after the hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.core.variables import Mode

from .lowered import Call, LoopSource, Lowered, measured_calls, now_ns, walking

LEAST_HOLD_S = 50e-6
MOST_HOLD_S = 20e-3
CALL_S = 50e-6  # to enqueue a call, until a repetition has been timed
HOLD_FACTOR = 2.0  # x the time to enqueue the last repetition
# the name of GpuStream.host_bound among a communicator's counters
HOST_BOUND = "gpu.host_bound_repetitions"


class GpuStream(Protocol):
    """A GPU's stream, as the engines need it.

    `host_bound` counts the repetitions timed by events whose begin had happened before the host had
    enqueued their end: the GPU may have waited for the host between the two.
    """

    host_bound: int

    def synchronise(self) -> None:
        """Block the host until everything that was enqueued is done."""

    def event(self) -> Any:
        """A new event of the library, for the three methods that follow."""

    def record(self, event: Any) -> None:
        """Into the stream that waits for the library's work; in any other stream it would measure
        nothing."""

    def happened(self, event: Any) -> bool:
        """Whether the stream has reached the event; does not wait."""

    def elapsed_ns(self, begin: Any, end: Any) -> int:
        """Requires that both have happened. CUDA resolves about 500 ns."""

    def hold(self, seconds: float) -> None:
        """Keep the stream busy for about this long."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """A function that replays the work enqueued by `enqueue`, which has run before. Raises
        Unsupported."""


class DeviceRunner:
    """See Runner; hosts one rank."""

    calls: tuple[str, ...] = ()

    def __init__(self, device: GpuStream, calls: Lowered[Call], pool: int) -> None:
        self.progress = np.array([0, -1], dtype=np.int64)
        self._device = device
        self._pool = pool
        self._enter = LoopSource(pool).routine(calls.enter)
        # one function: a wait after the steps is for requests of those before
        self._run = LoopSource(pool).routine(calls.before, calls.steps, calls.after)
        self._has_after = bool(calls.after)

    def __call__(self, n: int) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        with measured_calls():
            self._enter(0)
            self._device.synchronise()  # also for what was written into the buffers
            for repetition in range(n):
                self.progress[0] = repetition
                stamps[0, repetition] = self._repetition(repetition % self._pool)
            if self._has_after:  # no later repetition waits for it
                self._device.synchronise()
        return stamps

    def _repetition(self, copy: int) -> tuple[int, int]:
        """Begin and end in ns; with GPU events, only their difference is exact."""
        raise NotImplementedError


class HostSync(DeviceRunner):
    def _repetition(self, copy: int) -> tuple[int, int]:
        instants = list[int]()

        def mark() -> None:
            self._device.synchronise()
            instants.append(now_ns())

        self._run(copy, mark, mark)
        begin, end = instants
        return begin, end


class EventTimed(DeviceRunner):
    """device_event and throughput, which differ in how many samples are between two events."""

    def __init__(self, device: GpuStream, calls: Lowered[Call], pool: int) -> None:
        super().__init__(device, calls, pool)
        self._begin = device.event()
        self._end = device.event()
        self._record_begin = partial(device.record, self._begin)
        self._record_end = partial(device.record, self._end)
        self._hold_s = _bounded_hold_s(CALL_S * len((*calls.before, *calls.steps)))

    def _enqueue(self, copy: int) -> None:
        """Enqueue a repetition and its two events."""
        self._run(copy, self._record_begin, self._record_end)

    def _repetition(self, copy: int) -> tuple[int, int]:
        """The duration is that of the GPU's events, and its end the host's time, so that
        repetitions are in order."""
        self._device.hold(self._hold_s)
        before_ns = now_ns()
        self._enqueue(copy)
        enqueued_s = (now_ns() - before_ns) * 1e-9
        self._device.host_bound += self._device.happened(self._begin)
        self._device.synchronise()
        now = now_ns()
        self._hold_s = _bounded_hold_s(HOLD_FACTOR * enqueued_s)
        return now - self._device.elapsed_ns(self._begin, self._end), now


def _bounded_hold_s(seconds: float) -> float:
    return min(max(seconds, LEAST_HOLD_S), MOST_HOLD_S)


class Graph(EventTimed):
    """Replays steps that have run before: libraries allocate and connect in a first use, which must
    not happen inside a capture.

    They are captured here, not in a repetition, so that all ranks can agree whether that succeeded
    before one of them waits for another. `graphs`: one for each copy that a repetition begins with.
    Raises Unsupported.
    """

    def __init__(self, device: GpuStream, calls: Lowered[Call], pool: int, graphs: int) -> None:
        super().__init__(device, calls, pool)
        device.synchronise()
        self._before = LoopSource(pool).routine(calls.before)
        steps = LoopSource(pool).routine(calls.steps)
        with measured_calls():
            self._graphs = [device.capture(partial(steps, copy)) for copy in range(graphs)]
        self._uploaded: set[int] = set()

    def _enqueue(self, copy: int) -> None:
        self._before(copy)
        self._record_begin()
        self._graphs[copy]()
        self._record_end()

    def _repetition(self, copy: int) -> tuple[int, int]:
        copy %= len(self._graphs)
        if copy not in self._uploaded:  # the first launch does that
            self._uploaded.add(copy)
            self._graphs[copy]()
            self._device.synchronise()
        return super()._repetition(copy)


def device_runner(device: GpuStream, calls: Lowered[Call], pool: int, mode: Mode) -> DeviceRunner:
    """The runner for one of config.keys.TIMERS["cuda"]."""
    calls = replace(calls, steps=walking(calls.steps, mode.samples))
    # a rank that has no part in the case has nothing to capture
    if mode.timer == "graph" and mode.connected and calls.steps:
        # a replay that walks through all copies may always begin with the first
        return Graph(device, calls, pool, 1 if mode.samples >= pool else pool)
    return (HostSync if mode.timer == "host_sync" else EventTimed)(device, calls, pool)
