"""MPI on CUDA tensors: whether the library takes device memory, and programs on the memory of the rank's GPU.

A library that is not CUDA-aware would read a device address as a host address, and crash. So it is given device memory
only if it is known to take it: by its files before it is loaded, and by the library itself after MPI_Init. Sources are
man MPIX_Query_cuda_support and ompi_info for Open MPI, src/binding and MPIR_CVAR_ENABLE_GPU for MPICH.

MPI has no streams. It reads and writes device memory when it is called, so all work on a buffer must be complete by
then (mpi4py's tutorial, CUDA-aware MPI + Python GPU arrays). Writes into buffers are complete when they return
(Allocation), and so are copies in a program; the engine waits for the reset before a sample. What MPI returns is
complete, so nothing waits after a call.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from commbench.backends.torch.cuda import CudaDevice, CudaMemory
from commbench.buffers.memory import DeviceBuffer, HostBuffer, rotation_pool
from commbench.buffers.staging import CudaPageLock, PinnedBuffer, with_staging
from commbench.core.case import Case, Mode, World
from commbench.core.errors import Unsupported
from commbench.core.payload import dtype
from commbench.core.program import BufferSpec, Copy, Program, Step, View
from commbench.engines.device import Device, DeviceRunner, device_runner
from commbench.engines.lowered import Call, Lowered, Rotating
from commbench.hardware.cuda import includes_any
from commbench.hardware.mpi_library import MpiLibrary

from .lowering import PythonLowering, loaded_library

GPU_SUPPORT_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h
SWITCHES = {
    "openmpi": ("OMPI_MCA_opal_cuda_support", "OMPI_MCA_mpi_cuda_support"),
    "mpich": ("MPIR_CVAR_ENABLE_GPU",),
}
OFF = ("0", "false", "no", "off", "n")
COMPONENT = "mca_accelerator_cuda.so"  # Open MPI 5; version 4 has the code in the library itself
COMPONENT_FOLDERS = ("openmpi", "openmpi3")  # next to the library; the second is Debian's
BUILT_WITH_CUDA = re.compile(r"^mca:\w+:base:param:(?:opal|mpi)_built_with_cuda_support:value:(\w+)$", re.MULTILINE)
CUDA_LIBRARIES = (b"libcudart.so", b"libcuda.so")  # one of which an MPICH built for CUDA is linked with
UCX_TRANSPORTS = ("all", "cuda", "cuda_copy")  # those that can read device memory at all
OMPI_INFO_TIMEOUT_S = 10


@dataclass(frozen=True)
class CudaAware:
    """Whether a library takes device memory, None if unknown; `source` is what says so."""

    answer: bool | None
    source: str

    def __str__(self) -> str:
        text = {True: "takes device memory", False: "takes no device memory", None: "may not take device memory"}
        return f"{text[self.answer]} ({self.source})"


def cuda_aware_by_files(library: MpiLibrary, environ: Mapping[str, str] = os.environ) -> CudaAware:
    """From files and the environment, without loading the library."""
    switches = [f"{name}={environ[name]}" for name in SWITCHES[library.kind] if environ.get(name, "").lower() in OFF]
    accelerator = environ.get("OMPI_MCA_accelerator", "")
    if library.kind == "openmpi" and not includes_any(accelerator, ("cuda",)):
        switches.append(f"OMPI_MCA_accelerator={accelerator}")
    if switches:
        return CudaAware(False, switches[0])
    return _open_mpi_by_files(library) if library.kind == "openmpi" else _mpich_by_file(library.path)


@cache
def _open_mpi_by_files(library: MpiLibrary) -> CudaAware:
    folders = [Path(library.path).parent, Path(library.path).resolve().parent]
    if any((folder / name / COMPONENT).exists() for folder in folders for name in COMPONENT_FOLDERS):
        return CudaAware(True, COMPONENT)
    program = library.program(("ompi_info", "ompi_info.openmpi"))
    if program is None:
        return CudaAware(None, f"neither {COMPONENT} nor ompi_info beside {library.path}")
    command = [program, "--parsable", "--all"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=OMPI_INFO_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return CudaAware(None, f"{program}: {type(error).__name__}")
    return CudaAware(built_with_cuda(listing), f"{Path(program).name}: built_with_cuda_support")


def built_with_cuda(listing: str) -> bool | None:
    """What the output of `ompi_info --parsable --all` says; None if it says nothing."""
    match = BUILT_WITH_CUDA.search(listing)
    return None if match is None else match[1] == "true"


@cache
def _mpich_by_file(path: str) -> CudaAware:
    """The names of the libraries that it is linked with are plain text in the file."""
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            name = next((name for name in CUDA_LIBRARIES if content.find(name) >= 0), None)
    except (OSError, ValueError) as error:
        return CudaAware(None, f"{path}: {error}")
    linked = "no CUDA library" if name is None else name.decode()
    return CudaAware(name is not None, f"{Path(path).name} is linked with {linked}")


def cuda_aware_by_query() -> CudaAware:
    """From the loaded library itself, after MPI_Init; this answer takes precedence over that of its files."""
    library = loaded_library()
    # first MPICH's function for any kind of GPU: its other one aborts in an MPICH 3 built without CUDA (AMReX #4820)
    if hasattr(library, "MPIX_GPU_query_support"):
        flag = ctypes.c_int(0)
        status = library.MPIX_GPU_query_support(GPU_SUPPORT_CUDA, ctypes.byref(flag))
        return CudaAware(status == 0 and flag.value != 0, "MPIX_GPU_query_support")
    if not hasattr(library, "MPIX_Query_cuda_support"):
        return CudaAware(None, "the library has neither MPIX_GPU_query_support nor MPIX_Query_cuda_support")
    if library.MPIX_Query_cuda_support() != 1:
        return CudaAware(False, "MPIX_Query_cuda_support")
    problem = ucx_problem(Path("/proc/self/maps").read_text(), os.environ)
    if problem is not None:
        return CudaAware(False, f"MPIX_Query_cuda_support says yes, but {problem}")
    return CudaAware(True, "MPIX_Query_cuda_support")


def ucx_problem(maps: str, environ: Mapping[str, str]) -> str | None:
    """Why UCX below Open MPI may not take device memory although Open MPI would; `maps` is /proc/self/maps.

    Open MPI does not say which transport it has chosen: if it may be UCX, then UCX must be able to.
    """
    if "/libucp.so" not in maps or not includes_any(environ.get("OMPI_MCA_pml", ""), ("ucx",)):
        return None
    if "/libuct_cuda.so" not in maps:
        return "UCX is loaded without libuct_cuda.so; set OMPI_MCA_pml=ob1 to run without UCX"
    transports = environ.get("UCX_TLS", "")
    return None if includes_any(transports, UCX_TRANSPORTS) else f"UCX_TLS={transports} leaves out cuda_copy"


class Gpu(Protocol):
    """A rank's GPU as MPI's communicator needs it."""

    device: Device

    def allocate(self, spec: BufferSpec, pool: int) -> DeviceBuffer:
        """Raises MemoryError."""

    def host(self, spec: BufferSpec, pool: int) -> HostBuffer:
        """Page-locked host memory. Raises MemoryError."""

    def bytes_of(self, buffer: Any, slot: int, copy: int, part: slice) -> Any:
        """An argument of `move`: a part, in bytes, of a slot of a buffer in host or device memory."""

    def move(self, target: Any, source: Any) -> None:
        """Complete when it returns."""

    def readings(self) -> dict[str, float]: ...


class TorchGpu:
    """See Gpu."""

    def __init__(self, world: World) -> None:
        self._cuda = CudaDevice.of(world)
        self.device: Device = self._cuda
        self.readings = self._cuda.readings
        self._page_lock = CudaPageLock()

    def allocate(self, spec: BufferSpec, pool: int) -> DeviceBuffer:
        return DeviceBuffer(spec, pool, lambda size: CudaMemory(size, self._cuda.place))

    def host(self, spec: BufferSpec, pool: int) -> HostBuffer:
        return PinnedBuffer(spec, pool, self._page_lock)

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
    """Messages by address, so that the same code serves host and device memory; copies are made by the GPU."""

    def __init__(self, mpi: Any, communicator: Any, buffers: Mapping[str, Any], gpu: Gpu) -> None:
        super().__init__(mpi, communicator, buffers)
        self._gpu = gpu

    def call(self, step: Step) -> Call:
        if isinstance(step, Copy):
            return Call(self._gpu.move, (self._bytes(step.target), self._bytes(step.source)))
        return super().call(step)

    def _memory(self, view: View) -> Rotating:
        buffer, part = self._buffers[view.buffer], self._byte_range(view)
        addresses = (buffer.address(view.slot, copy) + part.start for copy in range(buffer.pool))
        size_bytes = part.stop - part.start
        return Rotating(tuple(self._mpi.buffer.fromaddress(address, size_bytes) for address in addresses))

    def _bytes(self, view: View) -> Rotating:
        buffer, part = self._buffers[view.buffer], self._byte_range(view)
        return Rotating(tuple(self._gpu.bytes_of(buffer, view.slot, copy, part) for copy in range(buffer.pool)))

    def _byte_range(self, view: View) -> slice:
        """The bytes of the view in its slot."""
        buffer = self._buffers[view.buffer]
        itemsize = dtype(buffer.spec.dtype).itemsize
        return slice(view.offset * itemsize, (view.offset + view.count_in(buffer.spec)) * itemsize)


def cuda_skip_reason(case: Case, by_files: CudaAware) -> str | None:
    """The reason to skip a case on device memory, from what is known of the library before it is loaded."""
    if case.engine != "python":
        return f"engine={case.engine} can neither copy between host and device nor time a GPU; use engine=python"
    if case.timing_mode != "host_sync":
        return f"MPI blocks the host, not a stream: timing_mode={case.timing_mode} would time nothing; use host_sync"
    if case.staging == "none" and by_files.answer is False:
        return f"this MPI library {by_files}; use staging=pinned"
    return None


def cuda_runner(
    mpi: Any, communicator: Any, gpu: Gpu, aware: CudaAware, program: Program, buffers: Mapping[str, Any], mode: Mode
) -> DeviceRunner:
    """Raises Unsupported if the library would be given device memory that it is not known to take."""
    if mode.staging == "pinned":
        program, buffers = with_staging(program, communicator.rank, buffers, gpu.host)
    elif buffers and aware.answer is not True:
        raise Unsupported(f"this MPI library {aware}; use staging=pinned")
    lowering = CudaLowering(mpi, communicator, buffers, gpu)
    calls = Lowered.of(program, mode.sync, lowering.call)
    runner = device_runner(gpu.device, calls, rotation_pool(buffers), mode)
    weakref.finalize(runner, dict(buffers).clear).atexit = False  # pages stay locked while the runner may use them
    return runner
