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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from commbench.backends.torch.cuda import CudaDevice, view_tensors
from commbench.core.program import Copy, Step, View
from commbench.engines.lowered import Call, Rotating
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
        done = subprocess.run(command, capture_output=True, timeout=OMPI_INFO_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return CudaAware(None, f"{program}: {type(error).__name__}")
    match = BUILT_WITH_CUDA.search(done.stdout.decode(errors="replace"))  # folders may have any name
    answer = None if match is None else match[1] == "true"
    return CudaAware(answer, f"{Path(program).name}: built_with_cuda_support")


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


class CudaLowering(PythonLowering):
    """Messages by address, so that the same code serves host and device memory; copies are made by the GPU."""

    def __init__(self, mpi: Any, communicator: Any, buffers: Mapping[str, Any], gpu: CudaDevice) -> None:
        super().__init__(mpi, communicator, buffers)
        self._gpu = gpu

    def call(self, step: Step) -> Call:
        if isinstance(step, Copy):
            return Call(self._copy, (self._tensors(step.target), self._tensors(step.source)))
        return super().call(step)

    def _copy(self, target: Any, source: Any) -> None:
        """Complete when it returns."""
        target.copy_(source, non_blocking=True)
        self._gpu.synchronise()

    def _memory(self, view: View) -> Rotating:
        buffer, at = self._buffers[view.buffer], self._mpi.buffer.fromaddress
        return Rotating(tuple(at(address, buffer.size_bytes(view)) for address in buffer.addresses(view)))

    def _tensors(self, view: View) -> Rotating:
        return view_tensors(self._buffers[view.buffer], view)
