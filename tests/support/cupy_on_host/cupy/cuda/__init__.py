"""See cupy. A stream's work is done when the host waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from cupy.cuda import runtime

Work = Callable[[], None]


class Stream:
    current: ClassVar[list[Stream]] = []

    def __init__(self, non_blocking: bool = False) -> None:
        self.ptr = id(self)
        self._queue: list[Work] = []
        self._kept: list[Work] | None = None  # while it is captured
        runtime.STREAMS[self.ptr] = self

    def enqueue(self, work: Work) -> None:
        self._queue.append(work)

    def synchronize(self) -> None:
        if self._kept is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported")
        queue = self._queue
        self._queue = []
        for work in queue:
            work()

    def begin_capture(self, mode: int) -> None:
        self._kept = self._queue
        self._queue = []

    def end_capture(self) -> Graph:
        captured = self._queue
        self._queue = self._kept or []
        self._kept = None
        return Graph(captured)

    def __enter__(self) -> None:
        self.current.append(self)

    def __exit__(self, *args: Any) -> None:
        self.current.pop()


class Graph:
    def __init__(self, captured: list[Work]) -> None:
        self._captured = captured

    def launch(self, stream: Stream) -> None:
        for work in self._captured:
            stream.enqueue(work)


class Event:
    def __init__(self) -> None:
        self.ns = 0
        self.done = False

    def record(self, stream: Stream) -> None:
        self.done = False
        stream.enqueue(self._happen)

    def _happen(self) -> None:
        self.ns = time.monotonic_ns()
        self.done = True


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds."""
    return (end.ns - start.ns) * 1e-6


class alloc:  # noqa: N801
    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size, dtype=np.uint8)
        self.ptr = int(self._bytes.ctypes.data)
