"""MPI on the memory of a device that is none: the paths of CUDA tensors in worlds of real libraries, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from queued import Memory, QueuedDevice

from commbench.backends.mpi.backend import Mpi, MpiCommunicator
from commbench.backends.mpi.cuda import CudaAware
from commbench.buffers.memory import DeviceBuffer, HostBuffer
from commbench.core.case import World
from commbench.core.program import BufferSpec
from commbench.core.protocols import Control


class HostGpu:
    """See backends.mpi.cuda.Gpu. A copy is done when its device is waited for, and move waits."""

    def __init__(self) -> None:
        self.device = QueuedDevice()

    def allocate(self, spec: BufferSpec, pool: int) -> DeviceBuffer:
        return DeviceBuffer(spec, pool, Memory)

    def host(self, spec: BufferSpec, pool: int) -> HostBuffer:
        return HostBuffer(spec, pool)

    def bytes_of(self, buffer: Any, slot: int, copy: int, part: slice) -> Any:
        if isinstance(buffer, DeviceBuffer):
            memory: Any = buffer.allocation
            return memory.bytes[buffer.offset(slot, copy) :][part]
        return buffer.words(slot, copy).view(np.uint8)[part]

    def move(self, target: Any, source: Any) -> None:
        self.device.enqueue(lambda: np.copyto(target, source))
        self.device.synchronise()

    def readings(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class MpiOnHost(Mpi):
    """See Backend. `aware`: what the library says of itself; `files`: what its files say."""

    name: ClassVar[str] = "mpi_on_host"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    aware: bool = True
    files: bool = True

    def missing(self, device: str = "cuda") -> str | None:
        return super().missing("cpu")

    def gpu(self, world: World) -> HostGpu:
        return HostGpu()

    def open(self, world: World, control: Control, device: str = "cuda") -> MpiCommunicator:
        opened = super().open(world, control, device)
        opened._aware = replace(opened._aware, answer=self.aware)
        return opened

    def _cuda_aware_by_files(self) -> CudaAware:
        return CudaAware(self.files, "its files")
