"""A GPU through CuPy, without torch: which one a rank uses, a stream with its clock, and memory for the buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.torch.cuda import DEFAULT_SM_HZ, NS_PER_MS, gpu_ordinal
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.engines.device import HOST_BOUND
from commbench.hardware.nvml import Monitor

HOLD_KERNEL = """
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

    def happened(self) -> bool:
        return bool(self._event.done)

    def elapsed_ns(self, since: Any) -> int:
        elapsed_ms: float = self._cupy.cuda.get_elapsed_time(since._event, self._event)
        return round(elapsed_ms * NS_PER_MS)


class CupyDevice:
    """See engines.device.Device. All work is on one stream, in order, and does not wait for other streams."""

    def __init__(self, index: int) -> None:
        import cupy

        self._cupy: Any = cupy
        self._runtime: Any = cupy.cuda.runtime
        self.host_bound = 0
        self._runtime.setDevice(index)
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.pointer = int(self.stream.ptr)
        self.synchronise: Callable[[], None] = self.stream.synchronize
        self._sm_hz = 1e3 * _sm_clock_khz(self._runtime, index) or DEFAULT_SM_HZ
        self._kernel: Any = cupy.RawKernel(HOLD_KERNEL, "hold")
        self._monitor = Monitor(str(self._runtime.deviceGetPCIBusId(index)))

    @classmethod
    def of(cls, world: World) -> CupyDevice:
        """The GPU of this rank. Raises CUDARuntimeError where CUDA can't start."""
        import cupy

        return cls(gpu_ordinal(world, cupy.cuda.runtime.getDeviceCount()))

    def event(self) -> CupyEvent:
        return CupyEvent(self._cupy, self.stream)

    def ready_to_hold(self) -> None:
        """Compile the kernel that holds the stream. Raises Unsupported where CuPy can't."""
        try:
            self._kernel.compile()
        except Exception as error:  # CuPy's errors have no common base, and NVRTC may not even be there
            first = (str(error).splitlines() or [""])[0]
            raise Unsupported(
                f"timing by events needs a kernel that CuPy can't compile here: {type(error).__name__}: {first}"
            ) from error

    def hold(self, seconds: float) -> None:
        """A kernel that counts clock ticks: it ends by itself, whatever the host does."""
        with self.stream:
            self._kernel((1,), (1,), (np.int64(seconds * self._sm_hz),))

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Other threads may allocate meanwhile, so only this thread's calls are captured; the steps have run before."""
        self.stream.begin_capture(self._runtime.streamCaptureModeThreadLocal)
        problem: Exception | None = None
        try:
            enqueue()
        except Exception as error:  # whatever it was, the capture has to be ended
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
        """Clocks, temperature, throttle reasons and byte counters, as far as NVML provides them."""
        return {**self._monitor.readings(), HOST_BOUND: float(self.host_bound)}


class CupyMemory:
    """See buffers.memory.Allocation: bytes of CuPy's pool. Raises MemoryError (CuPy's OutOfMemoryError is one)."""

    def __init__(self, size: int) -> None:
        import cupy

        self._runtime: Any = cupy.cuda.runtime
        self._memory: Any = cupy.cuda.alloc(size)
        self.address = int(self._memory.ptr)

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        direction = self._runtime.memcpyHostToDevice
        self._runtime.memcpy(self.address + offset, data.ctypes.data, data.nbytes, direction)
        # from pageable memory the copy may return before its end, and this stream does not wait for the default one
        self._runtime.deviceSynchronize()

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, dtype=np.uint8)
        direction = self._runtime.memcpyDeviceToHost
        self._runtime.memcpy(data.ctypes.data, self.address + offset, size, direction)
        return data


def _sm_clock_khz(runtime: Any, index: int) -> int:
    """0 where this CUDA does not provide it."""
    try:
        return int(runtime.deviceGetAttribute(runtime.cudaDevAttrClockRate, index))
    except (AttributeError, RuntimeError):
        return 0
