"""The engines of a GPU: work is enqueued from Python, and timed in one of four modes.

host_sync    host clock around the calls and a synchronisation: what a caller that waits for the result sees
device_event GPU events around calls that are enqueued while the GPU is kept busy: without the launch overhead
throughput   GPU events around calls that follow one another without a wait (block_k): as nccl-tests measures
graph        GPU events around the replay of a captured graph of such calls (block_k): one launch from the host
Libraries return before the work is done, so a host clock is only valid after a synchronisation.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Mode
from commbench.core.clock import now_ns
from commbench.core.errors import CommunicationError, Unsupported

from .loop import LoopSource
from .lowered import Call, Lowered

LEAST_HOLD_S, MOST_HOLD_S = 50e-6, 20e-3
HOLD_FACTOR = 2.0  # of the time that enqueuing took in the repetition before

Enqueue = Callable[[int], None]  # with the copy of the rotation pool


class Event(Protocol):
    def record(self) -> None:
        """Into the stream that waits for the library's work; in any other stream it would measure nothing."""

    def elapsed_ns(self, since: Event) -> int:
        """Requires that both have happened. CUDA resolves about 500 ns."""


class Device(Protocol):
    """A GPU's stream as an engine needs it."""

    def synchronise(self) -> None:
        """Block the host until everything that was enqueued is done."""

    def event(self) -> Event: ...

    def hold(self, seconds: float) -> None:
        """Keep the stream busy for about so long, with an upper limit."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """A function that replays the work enqueued by `enqueue`, which has run before. Raises Unsupported."""


class DeviceRunner:
    """See Runner; hosts one rank. There is one subclass per timing mode."""

    engine = "python"
    calls: tuple[str, ...] = ()

    def __init__(self, device: Device, calls: Lowered[Call], pool: int) -> None:
        self.progress = np.array([0, -1], dtype=np.int64)
        self._device, self._pool = device, pool
        self._enter, self._before, self._steps = (
            LoopSource(pool).routine(part) for part in (calls.enter, calls.before, calls.steps)
        )

    def __call__(self, n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        enabled = gc.isenabled()
        gc.disable()
        try:
            self._enter(0)
            self._device.synchronise()  # also for what was written into the buffers
            for repetition in range(n):
                self.progress[0] = repetition
                stamps[0, repetition] = self._repetition(repetition % self._pool)
        except Unsupported:
            raise
        except Exception as error:
            raise CommunicationError(f"{type(error).__name__}: {error}") from error
        finally:
            if enabled:
                gc.enable()
        return stamps

    def _repetition(self, copy: int) -> tuple[int, int]:
        """Begin and end in ns; with GPU events, only their difference is exact."""
        raise NotImplementedError


class HostSync(DeviceRunner):
    def _repetition(self, copy: int) -> tuple[int, int]:
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

    def _repetition(self, copy: int) -> tuple[int, int]:
        self._before(copy)
        return self._timed(self._steps, copy)

    def _timed(self, enqueue: Enqueue, copy: int) -> tuple[int, int]:
        self._begin.record()
        enqueue(copy)
        self._end.record()
        self._device.synchronise()
        return self._stamps()

    def _stamps(self) -> tuple[int, int]:
        """The duration by the GPU's events, placed at the host's time of its end, which orders the time line."""
        now = now_ns()
        return now - self._end.elapsed_ns(self._begin), now


class DeviceEvent(Throughput):
    _hold_s = LEAST_HOLD_S

    def _repetition(self, copy: int) -> tuple[int, int]:
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


class Graph(Throughput):
    """The first repetition runs without a graph and shows the cost of a first call; the next one is captured.

    Libraries allocate and connect in a first use, which must not happen inside a capture. `connected` says that the
    steps have run before, so that the very first repetition is a replay.
    """

    def __init__(self, device: Device, calls: Lowered[Call], pool: int, connected: bool) -> None:
        super().__init__(device, calls, pool)
        self._connected = connected
        self._graphs: dict[int, Callable[[], None]] = {}

    def _repetition(self, copy: int) -> tuple[int, int]:
        if not self._connected:
            self._connected = True
            return super()._repetition(copy)
        if copy not in self._graphs:
            self._device.synchronise()
            self._graphs[copy] = self._device.capture(lambda: self._steps(copy))
            self._replay(copy)  # the first launch uploads the graph, and ranks end their captures at different times
            self._device.synchronise()
        self._before(copy)
        return self._timed(self._replay, copy)

    def _replay(self, copy: int) -> None:
        self._graphs[copy]()


RUNNERS = {"host_sync": HostSync, "device_event": DeviceEvent, "throughput": Throughput}


def device_runner(device: Device, calls: Lowered[Call], pool: int, mode: Mode) -> DeviceRunner:
    """The runner for one of settings.TIMING_MODES["cuda"]."""
    if mode.timing_mode == "graph":
        return Graph(device, calls, pool, mode.connected)
    return RUNNERS[mode.timing_mode](device, calls, pool)
