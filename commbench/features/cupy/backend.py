"""NCCL through CuPy, without torch: GPU memory, one GPU per rank.

The device is a rank's GPU through CuPy: a stream with its clock, and memory for the buffers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import DeviceBuffer, rotation_pool
from commbench.backends.nccl_library import LoadedNccl, NcclBackend, NcclLog, version_text
from commbench.backends.torch.cuda import DEFAULT_SM_HZ, NS_PER_MS, gpu_ordinal
from commbench.core.case import World
from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Buffer, Control, RankCommunicator
from commbench.core.terminal import first_line
from commbench.core.variables import EVENT_TIMED, Case, Device, Mode
from commbench.engines.device import HOST_BOUND, DeviceRunner, device_runner
from commbench.engines.lowered import Lowered, in_groups, reduced_float8
from commbench.hardware.cuda import driver_missing, driver_too_old
from commbench.hardware.machine_facts import installed_version
from commbench.hardware.nvml import Monitor

from .lowering import NCCL_UNSUPPORTED, CupyLowering, start_missing

ID_DEADLINE_S = 60.0  # until all ranks know the id of a communicator
BARRIER_BYTES = 256  # device memory for the element that barriers reduce
NCCL_LIBRARY = "libnccl.so.2"
CUDA_OF_WHEELS = ("13", "12", "11")
INSTALL = "pip install 'commbench[cuda]'"
HOLD_KERNEL = """
extern "C" __global__ void hold(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""


@dataclass(frozen=True)
class CupyNccl(NcclBackend):
    """See Backend."""

    name = "cupy_nccl"
    unsupported_forms = NCCL_UNSUPPORTED
    library: str = "auto"

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        kind = reduced_float8(program)
        if kind is not None:
            return f"CuPy has no constant for NCCL's {kind}; use backend=nccl"
        return super().supports(case, size, program) or start_missing(program)

    def missing(self, device: Device = "cuda") -> str | None:
        driver = driver_missing()
        if driver is not None:
            return f"{driver}; use a machine or container with an NVIDIA GPU, or take backend=gloo"
        if find_spec("cupy") is None:
            return f"cupy is not installed; {INSTALL}"
        # of NVIDIA's wheels; else it is in a conda environment or in the loader's path
        spec = find_spec("nvidia")
        folders = [Path(os.environ.get("CONDA_PREFIX", "/nowhere")) / "lib"]
        folders += [
            Path(folder) / "nccl" / "lib"
            for folder in (spec and spec.submodule_search_locations) or ()
        ]
        if (
            not any((folder / NCCL_LIBRARY).exists() for folder in folders)
            and find_library("nccl") is None
        ):
            return f"{NCCL_LIBRARY} was not found, and CuPy does not include it; {INSTALL}"
        wheels = (
            major
            for major in CUDA_OF_WHEELS
            if installed_version((f"cupy-cuda{major}x",)) is not None
        )
        older = "pip install 'commbench[cuda12]', or take backend=gloo"
        return next(
            (reason for major in wheels if (reason := driver_too_old("cupy", major, older))), None
        )

    def open(self, world: World, control: Control, device: Device = "cuda") -> CupyCommunicator:
        log = NcclLog(os.environ)
        return CupyCommunicator(CupyDevice.of(world), control, log)


class CupyCommunicator(RankCommunicator):
    """See RankCommunicator. NCCL connects here, and to other peers in the first call of a case."""

    def __init__(self, device: CupyDevice, control: Control, log: NcclLog) -> None:
        from cupy.cuda import nccl

        self.nccl = nccl
        self.device = device
        self._control = control
        self._log = log
        self.size = control.size
        self.hosted = (control.rank,)
        self._subsets: list[CupyCommunicator] = []
        self.comm = self.connect()
        self.barrier_memory = CupyMemory(BARRIER_BYTES)

    def connect(self) -> Any:
        """An object of NCCL's communicator of all ranks. Raises CommunicationError."""
        control = self._control
        own_id = id_to_json(self.nccl.get_unique_id()) if control.rank == 0 else None
        unique_id = id_from_json(control.decide(own_id, ID_DEADLINE_S, "the id of a communicator"))
        try:
            return self.nccl.NcclCommunicator(self.size, unique_id, control.rank)
        except RuntimeError as error:  # NcclError is one
            raise CommunicationError(f"NCCL can't connect {self.size} ranks: {error}") from error

    def subset(self, ranks: Sequence[int]) -> CupyCommunicator | None:
        return self if tuple(ranks) == tuple(range(self.size)) else self.for_graphs(ranks)

    def for_graphs(self, ranks: Sequence[int]) -> CupyCommunicator | None:
        if self.hosted[0] not in ranks:
            return None
        self._subsets.append(CupyCommunicator(self.device, self._control.subset(ranks), self._log))
        return self._subsets[-1]

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return DeviceBuffer(spec, pool, CupyMemory)

    def runner(
        self, program: Program, buffers: Mapping[str, DeviceBuffer], mode: Mode
    ) -> DeviceRunner:
        if mode.timer in EVENT_TIMED:
            self.device.ready_to_hold()
        lowering = CupyLowering(
            self.nccl, self.comm, self.device, buffers, self.barrier_memory.address
        )
        lowered = Lowered.of(program, mode.sync, in_groups(lowering, self, mode))
        return device_runner(self.device, lowered, rotation_pool(buffers), mode)

    def counters(self) -> dict[str, float]:
        return self.device.readings()

    def facts(self) -> dict[str, Any]:
        import cupy

        own = f"cupy {cupy.__version__}"
        version = version_text(self.nccl.get_version())
        loaded = LoadedNccl.find()
        place = f" {loaded.origin}" if loaded else ""
        return {
            "library": f"{own} nccl {version}",
            "loaded": f"{own}, NCCL {version}{place}",
            **self._log.facts(),
        }

    def close(self, abort: bool = False) -> None:
        """Does nothing to NCCL in a broken world: destroying it waits for work that never ends."""
        if abort:
            return
        for communicator in (self, *self._subsets):
            communicator.comm.destroy()


def id_to_json(unique_id: bytes | tuple[int, ...]) -> str | list[int]:
    """A communicator's id: CuPy 14 has bytes, older ones a tuple of signed chars."""
    return unique_id.hex() if isinstance(unique_id, bytes) else list(unique_id)


def id_from_json(value: str | list[int]) -> bytes | tuple[int, ...]:
    return bytes.fromhex(value) if isinstance(value, str) else tuple(value)


# ---------------------------------------------------------------- the device


class CupyDevice:
    """See engines.device.GpuStream. All work is on one stream, in order, and does not wait for
    other streams."""

    def __init__(self, index: int) -> None:
        import cupy

        self._cupy: Any = cupy
        self._runtime: Any = cupy.cuda.runtime
        self.host_bound = 0
        self._runtime.setDevice(index)
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.pointer = int(self.stream.ptr)
        self.synchronise: Callable[[], None] = self.stream.synchronize
        try:
            clock_khz = int(
                self._runtime.deviceGetAttribute(self._runtime.cudaDevAttrClockRate, index)
            )
        except (AttributeError, RuntimeError):  # CUDA 13 does not provide it
            clock_khz = 0
        self._sm_hz = 1e3 * clock_khz or DEFAULT_SM_HZ
        self._kernel: Any = cupy.RawKernel(HOLD_KERNEL, "hold")
        self._monitor = Monitor(str(self._runtime.deviceGetPCIBusId(index)))

    @classmethod
    def of(cls, world: World) -> CupyDevice:
        """The GPU of this rank. Raises CUDARuntimeError where CUDA can't start."""
        import cupy

        return cls(gpu_ordinal(world, cupy.cuda.runtime.getDeviceCount()))

    def event(self) -> Any:
        return self._cupy.cuda.Event()

    def record(self, event: Any) -> None:
        event.record(self.stream)

    def happened(self, event: Any) -> bool:
        return bool(event.done)

    def elapsed_ns(self, begin: Any, end: Any) -> int:
        elapsed_ms: float = self._cupy.cuda.get_elapsed_time(begin, end)
        return round(elapsed_ms * NS_PER_MS)

    def ready_to_hold(self) -> None:
        """Compile the kernel that holds the stream. Raises Unsupported where CuPy can't."""
        try:
            self._kernel.compile()
        # CuPy's errors have no common base, and NVRTC may not even be there
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(str(error))}"
            raise Unsupported(
                f"timing by events needs a kernel that CuPy can't compile here: {reason}"
            ) from error

    def hold(self, seconds: float) -> None:
        """A kernel that counts clock ticks: it ends by itself, whatever the host does."""
        with self.stream:
            self._kernel((1,), (1,), (np.int64(seconds * self._sm_hz),))

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Other threads may allocate meanwhile, so only this thread's calls are captured; the steps
        have run before."""
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
        self._runtime.memcpyAsync(
            target, source, size, self._runtime.memcpyDeviceToDevice, self.pointer
        )

    def readings(self) -> dict[str, float]:
        """Clocks, temperature, throttle reasons and byte counters, as far as NVML provides them."""
        return {**self._monitor.readings(), HOST_BOUND: float(self.host_bound)}


class CupyMemory:
    """See buffers.memory.Allocation: bytes of CuPy's pool. Raises MemoryError (CuPy's
    OutOfMemoryError is one)."""

    def __init__(self, size: int) -> None:
        import cupy

        self._runtime: Any = cupy.cuda.runtime
        self._memory: Any = cupy.cuda.alloc(size)
        self.address = int(self._memory.ptr)

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._runtime.memcpy(
            self.address + offset, data.ctypes.data, data.nbytes, self._runtime.memcpyHostToDevice
        )
        # from pageable memory the copy may return before its end, and this stream does not wait for
        # the default one
        self._runtime.deviceSynchronize()

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, dtype=np.uint8)
        self._runtime.memcpy(
            data.ctypes.data, self.address + offset, size, self._runtime.memcpyDeviceToHost
        )
        return data
