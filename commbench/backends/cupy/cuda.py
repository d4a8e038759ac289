"""A GPU through CuPy: which one a rank uses, a stream of ours with its clock, its memory for the buffers. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.torch.cuda import USUAL_HZ, own_index
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.hardware.nvml import Monitor

NS_PER_MS = 1e6
HOLD = """
extern "C" __global__ void hold(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""


class CupyEvent:
    """See engines.device.Event."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._cupy, self._stream, self._event = cupy, stream, cupy.cuda.Event()

    def record(self) -> None:
        self._event.record(self._stream)

    def elapsed_ns(self, since: Any) -> int:
        elapsed_ms: float = self._cupy.cuda.get_elapsed_time(since._event, self._event)
        return round(elapsed_ms * NS_PER_MS)


class CupyDevice:
    """See engines.device.Device. All work is on one stream that waits for no other: what a rank does is in order."""

    def __init__(self, index: int) -> None:
        import cupy

        self._cupy: Any = cupy
        self._runtime: Any = cupy.cuda.runtime
        self._runtime.setDevice(index)
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.pointer = int(self.stream.ptr)
        self.synchronise: Callable[[], None] = self.stream.synchronize
        self._hz = 1e3 * _clock_khz(self._runtime, index) or USUAL_HZ
        self._kernel: Any = cupy.RawKernel(HOLD, "hold")
        self._monitor = Monitor(str(self._runtime.deviceGetPCIBusId(index)))

    @classmethod
    def of(cls, world: World) -> CupyDevice:
        """This rank's. Raises CUDARuntimeError where CUDA can't start."""
        import cupy

        count: int = cupy.cuda.runtime.getDeviceCount()
        return cls(own_index(world, max(count, 1)))

    def event(self) -> CupyEvent:
        return CupyEvent(self._cupy, self.stream)

    def ready_to_hold(self) -> None:
        """Compile the kernel that holds the stream. Raises Unsupported where CuPy can't."""
        try:
            self._kernel.compile()
        except Exception as error:  # CuPy's errors have no common base, and NVRTC may not even be there
            first = (str(error).splitlines() or [""])[0]
            raise Unsupported(
                f"timing_mode=device_event needs a kernel that CuPy can't compile here: {type(error).__name__}: {first}"
            ) from error

    def hold(self, seconds: float) -> None:
        """A kernel that counts clock ticks: it ends by itself, whatever the host does."""
        with self.stream:
            self._kernel((1,), (1,), (np.int64(seconds * self._hz),))

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """P23: other threads may allocate meanwhile, so the mode is the thread's own; the steps have run before."""
        self.stream.begin_capture(self._runtime.streamCaptureModeThreadLocal)
        problem: Exception | None = None
        try:
            enqueue()
        except Exception as error:  # the capture has to be ended whatever it was
            problem = error
        try:
            graph = self.stream.end_capture()
        except RuntimeError as error:
            problem = problem or error
        if problem is not None:
            raise Unsupported(f"CUDA can't capture these calls in a graph: {problem}") from problem
        launch: Callable[[Any], None] = graph.launch
        return lambda: launch(self.stream)

    def move(self, target: int, source: int, size: int) -> None:
        """Enqueue a copy between addresses on this device."""
        self._runtime.memcpyAsync(target, source, size, self._runtime.memcpyDeviceToDevice, self.pointer)

    def readings(self) -> dict[str, float]:
        """Clocks, temperature, throttle reasons and byte counters, as far as NVML tells them."""
        return self._monitor.readings()


class CupyMemory:
    """See device_memory.Allocation: bytes of CuPy's pool. Raises MemoryError (CuPy's OutOfMemoryError is one)."""

    def __init__(self, size: int) -> None:
        import cupy

        self._runtime: Any = cupy.cuda.runtime
        self._memory: Any = cupy.cuda.alloc(size)
        self.address = int(self._memory.ptr)

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpy(self.address + offset, data.ctypes.data, data.nbytes, kind)
        # from pageable memory it may return before the end, and our stream does not wait for the default one
        self._runtime.deviceSynchronize()

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, dtype=np.uint8)
        kind = self._runtime.memcpyDeviceToHost
        self._runtime.memcpy(data.ctypes.data, self.address + offset, size, kind)
        return data


def _clock_khz(runtime: Any, index: int) -> int:
    """Of the SMs; 0 where this CUDA does not tell."""
    try:
        return int(runtime.deviceGetAttribute(runtime.cudaDevAttrClockRate, index))
    except (AttributeError, RuntimeError):
        return 0
