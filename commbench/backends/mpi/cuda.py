"""MPI on CUDA tensors: the rank's GPU through torch, and programs on its memory.

MPI knows no streams. It reads and writes device memory when it is called, so all work on a buffer must be complete by
then (mpi4py's tutorial, CUDA-aware MPI + Python GPU arrays). Written buffers are (Allocation), copies in a program wait
for their end here, the reset before a sample is waited for by the engine. What MPI returns is complete: no wait after.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from commbench.backends.torch.cuda import CudaDevice, CudaMemory
from commbench.buffers.device import DeviceBuffer
from commbench.buffers.host import HostBuffer
from commbench.buffers.staging import CudaPageLock, PinnedBuffer, with_staging
from commbench.core.case import Case, Mode, World
from commbench.core.dtypes import dtype
from commbench.core.errors import Unsupported
from commbench.core.program import BufferSpec, Copy, Program, Step, View
from commbench.engines.device import Device, DeviceRunner, device_runner
from commbench.engines.lowered import Call, Lowered, Rotating

from .cuda_aware import CudaAware
from .python import PythonLowering
from .types import view_count


class Gpu(Protocol):
    """A rank's GPU as MPI's communicator needs it."""

    device: Device

    def allocate(self, spec: BufferSpec, pool: int) -> DeviceBuffer:
        """Raises MemoryError."""

    def host(self, spec: BufferSpec, pool: int) -> HostBuffer:
        """Memory that the GPU reads and writes fast. Raises MemoryError."""

    def bytes_of(self, buffer: Any, slot: int, copy: int, part: slice) -> Any:
        """What `move` takes: a part, in bytes, of a slot of a buffer of either kind."""

    def move(self, target: Any, source: Any) -> None:
        """Complete when it returns."""

    def readings(self) -> dict[str, float]: ...


class TorchGpu:
    """See Gpu."""

    def __init__(self, world: World) -> None:
        self._own = CudaDevice.of(world)
        self.device: Device = self._own
        self.readings = self._own.readings
        self._pages = CudaPageLock()

    def allocate(self, spec: BufferSpec, pool: int) -> DeviceBuffer:
        return DeviceBuffer(spec, pool, lambda size: CudaMemory(size, self._own.place))

    def host(self, spec: BufferSpec, pool: int) -> HostBuffer:
        return PinnedBuffer(spec, pool, self._pages)

    def bytes_of(self, buffer: Any, slot: int, copy: int, part: slice) -> Any:
        import torch

        if isinstance(buffer, DeviceBuffer):
            memory: Any = buffer.allocation
            return memory.tensor[buffer.offset(slot, copy) :][part]
        return torch.from_numpy(buffer.words(slot, copy).view(np.uint8)[part])

    def move(self, target: Any, source: Any) -> None:
        target.copy_(source, non_blocking=True)
        self.device.synchronise()


class CudaLowering(PythonLowering):
    """Messages by address, so that one path serves memory of the host and of a device; copies by the GPU."""

    def __init__(self, mpi: Any, communicator: Any, buffers: Mapping[str, Any], gpu: Gpu) -> None:
        super().__init__(mpi, communicator, buffers)
        self._gpu = gpu

    def call(self, step: Step) -> Call:
        if isinstance(step, Copy):
            return Call(self._gpu.move, (self._bytes(step.target), self._bytes(step.source)))
        return super().call(step)

    def _memory(self, view: View) -> Rotating:
        buffer, part = self._buffers[view.buffer], self._part(view)
        addresses = (buffer.address(view.slot, copy) + part.start for copy in range(buffer.pool))
        return Rotating(tuple(self._mpi.buffer.fromaddress(one, part.stop - part.start) for one in addresses))

    def _bytes(self, view: View) -> Rotating:
        buffer, part = self._buffers[view.buffer], self._part(view)
        return Rotating(tuple(self._gpu.bytes_of(buffer, view.slot, copy, part) for copy in range(buffer.pool)))

    def _part(self, view: View) -> slice:
        """The bytes of the view in its slot."""
        buffer = self._buffers[view.buffer]
        itemsize = dtype(buffer.spec.dtype).itemsize
        return slice(view.offset * itemsize, (view.offset + view_count(buffer, view)) * itemsize)


def refused_on_cuda(case: Case, files: CudaAware) -> str | None:
    """The reason of a skip on device memory; `files` is what is known of the library before it is loaded."""
    if case.engine != "python":
        return f"engine={case.engine} has no copies between host and device and no GPU's clock; use engine=python"
    if case.timing_mode != "host_sync":
        return f"MPI blocks the host, not a stream: timing_mode={case.timing_mode} would time nothing; use host_sync"
    if case.staging == "none" and files.answer is False:
        return f"this MPI library {files}; use staging=pinned"
    return None


def cuda_runner(
    mpi: Any, communicator: Any, gpu: Gpu, aware: CudaAware, program: Program, held: Mapping[str, Any], mode: Mode
) -> DeviceRunner:
    """Raises Unsupported where the library would be given memory that it is not known to take."""
    if mode.staging == "pinned":
        program, held = with_staging(program, communicator.rank, held, gpu.host)
    elif held and aware.answer is not True:
        raise Unsupported(f"this MPI library {aware}; use staging=pinned")
    lowering = CudaLowering(mpi, communicator, held, gpu)
    pool = max((buffer.pool for buffer in held.values()), default=1)
    runner = device_runner(gpu.device, Lowered.of(program, mode.sync, lowering.call), pool, mode)
    weakref.finalize(runner, dict(held).clear).atexit = False  # pages stay locked as long as something runs on them
    return runner
