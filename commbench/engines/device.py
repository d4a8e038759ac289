"""The engines of a GPU: work is enqueued from Python, and one of four honest clocks says how long it took.

host_sync    the host's clock around the calls and a synchronisation: what waits for the result sees this
device_event the GPU's events around calls that were enqueued while it was kept busy: without the launch
throughput   events around calls that follow one another without a wait (block_k): what nccl-tests shows
graph        events around the replay of a captured graph of such calls (block_k), see engines/graph.py
(method 2.7). Where a library calls back before the work is done (P1), only the synchronisation makes it true.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.core.clock import now_ns
from commbench.core.errors import CommunicationError, Unsupported

from .loop import Call, Source
from .lowered import Lowered

LEAST_HOLD_S, MOST_HOLD_S = 50e-6, 20e-3
HOLD_FACTOR = 2.0  # of the time that enqueuing took last time

Enqueue = Callable[[int], None]  # with the copy of the rotation pool


class Event(Protocol):
    def record(self) -> None:
        """Into the stream that waits for the library's work: elsewhere it measures nothing (P2)."""

    def elapsed_ns(self, since: Event) -> int:
        """After both have happened. CUDA resolves about 500 ns (P22)."""


class Device(Protocol):
    """A GPU's stream as an engine needs it."""

    def synchronise(self) -> None:
        """The host waits for everything that was enqueued."""

    def event(self) -> Event: ...

    def hold(self, seconds: float) -> None:
        """Keep the stream busy for about so long, and never for ever."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """What replays the work that `enqueue` gives the stream; it has run before. Raises Unsupported."""


class DeviceRunner:
    """See Runner; hosts one rank. Subclasses are clocks."""

    engine = "python"
    calls: tuple[str, ...] = ()

    def __init__(self, device: Device, calls: Lowered[Call], pool: int) -> None:
        self.progress = np.array([0, -1], dtype=np.int64)
        self._device, self._pool = device, pool
        self._enter, self._before, self._steps = (
            Source(pool).routine(part) for part in (calls.enter, calls.before, calls.steps)
        )

    def __call__(self, n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        enabled = gc.isenabled()
        gc.disable()
        try:
            self._enter(0)
            self._device.synchronise()  # what was written into the buffers, too
            for repetition in range(n):
                self.progress[0] = repetition
                stamps[0, repetition] = self._once(repetition % self._pool)
        except Unsupported:
            raise
        except Exception as error:
            raise CommunicationError(f"{type(error).__name__}: {error}") from error
        finally:
            if enabled:
                gc.enable()
        return stamps

    def _once(self, copy: int) -> tuple[int, int]:
        """Begin and end in ns; of a device's clock only their difference is exact."""
        raise NotImplementedError


class HostSync(DeviceRunner):
    def _once(self, copy: int) -> tuple[int, int]:
        self._before(copy)
        self._device.synchronise()
        begin = now_ns()
        self._steps(copy)
        self._device.synchronise()
        return begin, now_ns()


class Throughput(DeviceRunner):
    def __init__(self, device: Device, calls: Lowered[Call], pool: int) -> None:
        super().__init__(device, calls, pool)
        self._begin, self._end = device.event(), device.event()

    def _once(self, copy: int) -> tuple[int, int]:
        self._before(copy)
        return self._timed(self._steps, copy)

    def _timed(self, enqueue: Enqueue, copy: int) -> tuple[int, int]:
        self._begin.record()
        enqueue(copy)
        self._end.record()
        self._device.synchronise()
        return self._stamps()

    def _stamps(self) -> tuple[int, int]:
        """The device's duration, at the host's time of its end: a time line needs an order, and no more."""
        now = now_ns()
        return now - self._end.elapsed_ns(self._begin), now


class DeviceEvent(Throughput):
    _hold_s = LEAST_HOLD_S

    def _once(self, copy: int) -> tuple[int, int]:
        self._device.hold(self._hold_s)
        before = now_ns()
        self._before(copy)
        self._begin.record()
        self._steps(copy)
        self._end.record()
        enqueued_s = (now_ns() - before) * 1e-9
        self._device.synchronise()
        self._hold_s = min(max(HOLD_FACTOR * enqueued_s, LEAST_HOLD_S), MOST_HOLD_S)
        return self._stamps()
