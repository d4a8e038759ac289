"""Whether an MPI library takes addresses of device memory: by its files before it is loaded, by itself after MPI_Init.

A library that does not would read a device address as a host's, and die. So no is the answer wherever yes is not known.
Open MPI: man MPIX_Query_cuda_support, ompi_info. MPICH: src/binding, MPIX_GPU_query_support, MPIR_CVAR_ENABLE_GPU.
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

from commbench.hardware.cuda_ipc_setting import admitted
from commbench.hardware.mpi_library import MpiLibrary

from .symbols import loaded_library

CUDA = 0  # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h
SWITCHES = {
    "openmpi": ("OMPI_MCA_opal_cuda_support", "OMPI_MCA_mpi_cuda_support"),
    "mpich": ("MPIR_CVAR_ENABLE_GPU",),
}
OFF = ("0", "false", "no", "off", "n")
COMPONENT = "mca_accelerator_cuda.so"  # Open MPI 5; its version 4 has the code inside
COMPONENT_FOLDERS = ("openmpi", "openmpi3")  # beside the library; Debian's
BUILT = re.compile(r"^mca:\w+:base:param:(?:opal|mpi)_built_with_cuda_support:value:(\w+)$", re.MULTILINE)
LINKED = (b"libcudart.so", b"libcuda.so")  # among the names that an MPICH built for CUDA is linked with
TRANSPORTS = ("all", "cuda", "cuda_copy")  # of UCX: one that can read device memory at all
INFO_S = 10


@dataclass(frozen=True)
class CudaAware:
    """`answer` is None where nothing tells; `how` says what was looked at."""

    answer: bool | None
    how: str

    def __str__(self) -> str:
        words = {True: "takes device memory", False: "takes no device memory", None: "may take device memory or not"}
        return f"{words[self.answer]} ({self.how})"


def built(library: MpiLibrary, environ: Mapping[str, str] = os.environ) -> CudaAware:
    """By files and the environment, without loading it."""
    switched = _switched_off(library.kind, environ)
    if switched is not None:
        return CudaAware(False, switched)
    return _open_mpi(library) if library.kind == "openmpi" else _mpich(library.path)


def _switched_off(kind: str, environ: Mapping[str, str]) -> str | None:
    said = [f"{name}={environ[name]}" for name in SWITCHES[kind] if environ.get(name, "").lower() in OFF]
    chosen = environ.get("OMPI_MCA_accelerator", "")
    if kind == "openmpi" and not admitted(chosen, ("cuda",)):
        said.append(f"OMPI_MCA_accelerator={chosen}")
    return said[0] if said else None


@cache
def _open_mpi(library: MpiLibrary) -> CudaAware:
    folders = [Path(library.path).parent, Path(library.path).resolve().parent]
    for place in (folder / name / COMPONENT for folder in folders for name in COMPONENT_FOLDERS):
        if place.exists():
            return CudaAware(True, COMPONENT)
    program = library.program(("ompi_info", "ompi_info.openmpi"))
    if program is None:
        return CudaAware(None, f"neither {COMPONENT} nor ompi_info beside {library.path}")
    try:
        told = subprocess.run([program, "--parsable", "--all"], capture_output=True, text=True, timeout=INFO_S).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return CudaAware(None, f"{program}: {type(error).__name__}")
    return CudaAware(told_by(told), f"{Path(program).name}: built_with_cuda_support")


def told_by(listing: str) -> bool | None:
    """What `ompi_info --parsable --all` says of it; None where it says nothing."""
    found = BUILT.search(listing)
    return None if found is None else found[1] == "true"


@cache
def _mpich(path: str) -> CudaAware:
    """The names of the libraries that it needs are plain text in it."""
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            name = next((one for one in LINKED if content.find(one) >= 0), None)
    except (OSError, ValueError) as error:
        return CudaAware(None, f"{path}: {error}")
    how = f"{Path(path).name} is linked with {'nothing of CUDA' if name is None else name.decode()}"
    return CudaAware(name is not None, how)


def asked() -> CudaAware:
    """The loaded library itself, after MPI_Init. Its answer counts, not that of its files."""
    library = loaded_library()
    told = _generic(library) or _specific(library)
    if told is None:
        return CudaAware(None, "the library has neither MPIX_GPU_query_support nor MPIX_Query_cuda_support")
    problem = None
    if told.answer and "MPIX_Query" in told.how:
        problem = ucx_problem(Path("/proc/self/maps").read_text(), os.environ)
    return told if problem is None else CudaAware(False, f"{told.how} says yes, but {problem}")


def _generic(library: ctypes.CDLL) -> CudaAware | None:
    """MPICH's question for any kind of GPU. Its other one aborts where an MPICH 3 was built without (AMReX #4820)."""
    if not hasattr(library, "MPIX_GPU_query_support"):
        return None
    flag = ctypes.c_int(0)
    status = library.MPIX_GPU_query_support(CUDA, ctypes.byref(flag))
    return CudaAware(status == 0 and flag.value != 0, "MPIX_GPU_query_support")


def _specific(library: ctypes.CDLL) -> CudaAware | None:
    if not hasattr(library, "MPIX_Query_cuda_support"):
        return None
    return CudaAware(library.MPIX_Query_cuda_support() == 1, "MPIX_Query_cuda_support")


def ucx_problem(maps: str, environ: Mapping[str, str]) -> str | None:
    """Why UCX below Open MPI may not take device memory although Open MPI would; `maps` is /proc/self/maps.

    Which of its carriers Open MPI has chosen, it does not tell: where UCX may be the one, UCX must be able to.
    """
    if "/libucp.so" not in maps or not admitted(environ.get("OMPI_MCA_pml", ""), ("ucx",)):
        return None
    if "/libuct_cuda.so" not in maps:
        return "UCX is loaded without libuct_cuda.so; OMPI_MCA_pml=ob1 would leave it out"
    transports = environ.get("UCX_TLS", "")
    return None if admitted(transports, TRANSPORTS) else f"UCX_TLS={transports} leaves out cuda_copy"
