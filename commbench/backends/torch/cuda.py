"""A GPU through torch.cuda: which one a rank uses, its stream and clock for the engines, its memory
for the buffers."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import DeviceBuffer, rotation_pool
from commbench.backends.buffers.staging import CudaPageLock, PinnedBuffer, with_staging
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.core.program import Program, Step, View
from commbench.core.protocols import Buffer
from commbench.core.terminal import first_line
from commbench.core.units import about_bytes
from commbench.core.variables import Case, Mode
from commbench.engines.device import HOST_BOUND, DeviceRunner, device_runner
from commbench.engines.lowered import Call, Lowered, Rotating
from commbench.hardware import amd
from commbench.hardware.cuda import CudaDriver, driver_missing, driver_too_old
from commbench.hardware.gpu import VISIBLE_DEVICES
from commbench.hardware.machine_facts import older_torch
from commbench.hardware.nvml import Monitor
from commbench.hardware.torch_install import torch_build

NO_MORE_GRAPHS = (
    "torch captures nothing after that in this process, so other cases with timer=graph need"
    " a run without this operation"
)
DEFAULT_SM_HZ = 2e9  # determines how long a kernel holds the stream where the clock rate is unknown
NS_PER_MS = 1e6
# before, a replay filled the seed of random numbers (pytorch/pytorch#143572), and a send or receive
# inside a capture returned nothing to wait for (#133984)
GRAPHS_SINCE = (2, 7)


def cuda_missing(instead: str) -> str | None:
    """Why torch can't use a GPU here, determined without importing it and without a context; None
    if it can.

    `instead` ends the sentence: what to do without a GPU. ROCm's torch has torch.cuda, too, which
    is HIP there.
    """
    build = torch_build()
    is_rocm = bool(build.get("hip"))
    driver = amd.driver_missing() if is_rocm else driver_missing()
    if driver is not None:
        maker = "AMD" if is_rocm else "NVIDIA"
        return f"{driver}; use a machine or container with an {maker} GPU, or {instead}"
    names = amd.VISIBLE_DEVICES if is_rocm else (VISIBLE_DEVICES,)
    build_problem = None if is_rocm else _unfit_build(build.get("cuda"), instead)
    return build_problem or _hidden(names, instead)


def _unfit_build(built_for: object, instead: str) -> str | None:
    """Why a torch that was built for this CUDA version can't use the NVIDIA driver here."""
    if built_for is None:
        return (
            "torch is built without CUDA; install a CUDA build (pytorch.org/get-started/locally),"
            f" or {instead}"
        )
    if not re.match(r"[0-9]+(\.|$)", str(built_for)):
        return None
    return driver_too_old("torch", str(built_for), f"a torch for an older CUDA, or {instead}")


def _hidden(names: Iterable[str], instead: str) -> str | None:
    """The first of these variables that hides every GPU, as a reason."""
    for name in names:
        visible = os.environ.get(name)
        if visible is not None and (not visible.strip() or visible.lstrip().startswith("-")):
            return f"{name}={visible!r} hides every GPU; unset it or name some, or {instead}"
    return None


@cache  # a process keeps the torch that it has imported
def _too_old_for_graphs() -> str | None:
    """Why this torch's graphs can't be measured; None if they can."""
    installed = older_torch(GRAPHS_SINCE)
    return installed and (
        f"torch {installed} runs two more kernels in each replay of a graph, and can't capture"
        " messages; install torch 2.7 or newer, or use timer=throughput"
    )


def graph_refusal(case: Case) -> str | None:
    """Why this torch can't time the case by graphs; None if it can or need not."""
    return _too_old_for_graphs() if case.timer == "graph" else None


def gpu_ordinal(world: World, visible: int) -> int:
    """CUDA's ordinal of this rank's GPU: ranks of a node take the visible GPUs in turn, and share
    them if need be."""
    return world.local_rank % max(visible, 1)


class CudaDevice:
    """See engines.device.GpuStream. Its stream is the current one, which torch makes wait for its
    libraries' streams.

    `synchronise` is that of the stream: a call that returns has only been enqueued, and so has a
    wait for its work.
    """

    def __init__(self, index: int) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._cuda.set_device(index)
        self.place = torch.device("cuda", index)
        properties = self._cuda.get_device_properties(index)
        self.name: str = properties.name
        # in kHz or not given
        self._sm_hz = float(getattr(properties, "clock_rate", 0) or 0) * 1e3 or DEFAULT_SM_HZ
        self._stream: Any = self._cuda.current_stream(index)
        self.synchronise: Callable[[], None] = self._stream.synchronize
        self._failed_graphs: list[Any] = []
        self.host_bound = 0
        is_rocm = torch.version.hip is not None  # NVML does not know its GPUs
        # a MIG part's UUID is unknown to NVML, the bus id is not
        self._monitor = Monitor("" if is_rocm else CudaDriver().pci_bus_id(index))

    @classmethod
    def of(cls, world: World) -> CudaDevice:
        """The GPU of this rank. Raises RuntimeError where CUDA can't start."""
        import torch

        return cls(gpu_ordinal(world, torch.cuda.device_count()))

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA's compute capability: (9, 0) for an H100."""
        known: tuple[int, int] = self._cuda.get_device_capability(self.place)
        return known

    def event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def record(self, event: Any) -> None:
        event.record(self._stream)

    def happened(self, event: Any) -> bool:
        return bool(event.query())

    def elapsed_ns(self, begin: Any, end: Any) -> int:
        return int(begin.elapsed_time(end) * NS_PER_MS)

    def hold(self, seconds: float) -> None:
        """A kernel that counts clock ticks: it ends by itself, whatever the host does."""
        self._cuda._sleep(int(seconds * self._sm_hz))

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture on a separate stream, as CUDA requires; a library's stream joins it by the wait
        for its work.

        torch's watchdog queries events all the time, which capture mode "global" forbids to every
        thread. NCCL allocates at the first use of a communicator, so the steps have run before; a
        case uses one communicator.
        """
        if self._failed_graphs:
            raise Unsupported(
                "torch's allocator can't be used for graphs after a capture that failed in this"
                " process"
            )
        graph = self._cuda.CUDAGraph()
        try:
            with self._cuda.graph(graph, capture_error_mode="thread_local"):
                enqueue()
        except Exception as error:  # whatever it was, the capture was ended
            self._failed_graphs.append(graph)  # the allocator still points at it
            raise Unsupported(
                f"CUDA can't capture these calls in a graph: {first_line(error)}; {NO_MORE_GRAPHS}"
            ) from error
        finally:
            # a capture that fails at its end leaves the other stream current
            self._cuda.set_stream(self._stream)
        replay: Callable[[], None] = graph.replay
        return replay

    def side_stream(self) -> SideStream:
        return SideStream(self._cuda, self._cuda.Stream(self.place))

    def pages(self) -> CudaPageLock:
        """Page-locks host memory for this GPU."""
        return CudaPageLock()

    def readings(self) -> dict[str, float]:
        """Clocks, temperature, throttle reasons and byte counters, as far as NVML provides them."""
        return {**self._monitor.readings(), HOST_BOUND: float(self.host_bound)}


class SideStream:
    """A stream beside the current one, which waits for it as for torch's works."""

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._cuda = cuda
        self._stream = stream

    def start(self, enqueue: Callable[..., Any], *args: Any) -> SideStream:
        """Enqueue work after that which the current stream has so far."""
        # in a capture that is not the stream of the device
        self._stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._stream):
            enqueue(*args)
        return self

    def wait(self) -> None:
        self._cuda.current_stream().wait_stream(self._stream)


class CudaMemory:
    """See buffers.memory.Allocation: bytes of torch's allocator. Raises MemoryError."""

    def __init__(self, size: int, place: Any) -> None:
        import torch

        try:
            self.tensor = torch.empty(size, dtype=torch.uint8, device=place)
        except torch.OutOfMemoryError as error:
            # what follows is advice on torch's allocator
            reason = first_line(error).partition(" Including non-PyTorch")[0]
            raise MemoryError(f"{about_bytes(size)} on {place}: {reason}") from error
        self.address = int(self.tensor.data_ptr())

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        import torch

        # blocks, as the source is pageable
        self.tensor[offset : offset + len(data)].copy_(torch.from_numpy(data))

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        data: NDArray[np.uint8] = self.tensor[offset : offset + size].cpu().numpy()
        return data


def gpu_runner(
    gpu: CudaDevice,
    program: Program,
    rank: int,
    buffers: Mapping[str, Buffer],
    mode: Mode,
    lowering: Callable[[Mapping[str, Buffer]], Callable[[Step], Call]],
) -> DeviceRunner:
    """The runner of that rank's program, through pinned host memory if the mode says so. Raises
    Unsupported.

    `lowering` returns the function that lowers a step on these buffers.
    """
    used = dict(buffers)
    if mode.staging == "pinned":
        program, used = with_staging(program, rank, used, partial(PinnedBuffer, pages=gpu.pages()))
    runner = device_runner(
        gpu, Lowered.of(program, mode.sync, lowering(used)), rotation_pool(buffers), mode
    )
    # pages stay locked as long as something runs on them
    weakref.finalize(runner, used.clear).atexit = False
    return runner


def view_tensors(buffer: Any, view: View, numbers: bool = False) -> Rotating:
    """The view as a tensor in the buffer's own memory, on the host or on a GPU, in each copy of the
    pool: of bytes for float8, unless its `numbers` are reduced. Not all can move these: gloo, and
    NCCL 2.27 on a GPU that can't reduce them."""
    import torch

    def of_slot(copy: int) -> Any:
        if isinstance(buffer, DeviceBuffer) and isinstance(buffer.allocation, CudaMemory):
            start = buffer.offset(view.slot, copy)
            return buffer.allocation.tensor[start : start + buffer.payload_bytes]
        return torch.from_numpy(buffer.words(view.slot, copy))

    are_bytes = buffer.dtype.is_float8 and not numbers
    kind = getattr(torch, buffer.dtype.word if are_bytes else buffer.spec.dtype)
    return Rotating(tuple(of_slot(copy).view(kind)[view.elements] for copy in range(buffer.pool)))
