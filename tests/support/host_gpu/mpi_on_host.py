"""MPI on torch's CPU tensors in a GPU's place: the paths of CUDA tensors in worlds of real
libraries, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from host_gpu import HostGpu

from commbench.backends.mpi.backend import Mpi, MpiCommunicator
from commbench.core.case import World
from commbench.core.protocols import Control
from commbench.core.variables import Device
from commbench.hardware.mpi_library import CudaAware


@dataclass(frozen=True)
class MpiOnHost(Mpi):
    """See Backend. `aware`: what the library says of itself; `files`: what its files say."""

    name: ClassVar[str] = "mpi_on_host"
    devices: ClassVar[tuple[Device, ...]] = ("cuda",)
    aware: bool = True
    files: bool = True

    def missing(self, device: Device = "cuda") -> str | None:
        return super().missing("cpu")

    def gpu(self, world: World) -> Any:
        return HostGpu()

    def open(self, world: World, control: Control, device: Device = "cuda") -> MpiCommunicator:
        opened = super().open(world, control, device)
        opened._aware = replace(opened._aware, answer=self.aware)
        return opened

    def _cuda_aware_by_files(self) -> CudaAware:
        return CudaAware(self.files, "its files")
