"""A CUDA graph of the timed calls, replayed: one launch from the host, however many calls it holds (method 2.7)."""

from __future__ import annotations

from collections.abc import Callable

from .device import Device, Throughput
from .loop import Call
from .lowered import Lowered


class Graph(Throughput):
    """The first repetition of all runs as it is, and tells what a first call costs; what follows is captured.

    The libraries allocate and connect in a first use, which must not happen inside a capture (P23). `connected` says
    that the steps have run before: then the very first repetition is a replay.
    """

    def __init__(self, device: Device, calls: Lowered[Call], pool: int, connected: bool) -> None:
        super().__init__(device, calls, pool)
        self._connected = connected
        self._graphs: dict[int, Callable[[], None]] = {}

    def _once(self, copy: int) -> tuple[int, int]:
        if not self._connected:
            self._connected = True
            return super()._once(copy)
        if copy not in self._graphs:
            self._device.synchronise()
            self._graphs[copy] = self._device.capture(lambda: self._steps(copy))
            self._replay(copy)  # the first launch uploads the graph, and ranks end their captures at different times
            self._device.synchronise()
        self._before(copy)
        return self._timed(self._replay, copy)

    def _replay(self, copy: int) -> None:
        self._graphs[copy]()
