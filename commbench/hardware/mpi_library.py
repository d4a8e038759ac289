"""MPI libraries: find and identify one (Open MPI or MPICH) and its launcher without loading it, and
load it.

A library that is not CUDA-aware reads a device address as a host address, and crashes. So it gets
device memory only if it is known to accept it: from its files before it is loaded, and from the
library itself after MPI_Init. Sources: man MPIX_Query_cuda_support and ompi_info of Open MPI,
src/binding and MPIR_CVAR_ENABLE_GPU of MPICH.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.launchers import launchers

from .cuda import NO, includes_any
from .sources import NoReading, command_output, fact_text, mapped_files
from .ucx_log import ucx_log

MpiKind = Literal["openmpi", "mpich"]
SONAMES: Mapping[MpiKind, tuple[str, ...]] = {
    "openmpi": ("libmpi.so.40",),
    "mpich": ("libmpi.so.12", "libmpich.so.12"),
}
ALL_SONAMES = (*SONAMES["openmpi"], *SONAMES["mpich"])
LOADED_NAMES = ("libmpi.so", "libmpich.so", "libmpi_cray.so")
# the unambiguous names first: `mpirun` is that of the library that was installed last
LAUNCHERS: Mapping[MpiKind, tuple[str, ...]] = {
    "openmpi": ("prterun", "mpirun.openmpi", "orterun", "mpirun"),
    "mpich": ("mpiexec.hydra", "mpiexec.mpich", "mpiexec"),
}
# variables of the launchers; PMI_RANK alone may come from Slurm, which starts ranks of both
# libraries
OPEN_MPI_RANK = "OMPI_COMM_WORLD_RANK"
PMI_RANK = "PMI_RANK"
PMIX_RANK = "PMIX_RANK"
MVAPICH_RANK = "MV2_COMM_WORLD_RANK"
HYDRA_LOCAL_RANK = "MPI_LOCALRANKID"
THREADS = ("single", "funneled", "serialized", "multiple")
CHOICES = "auto, openmpi, mpich or the full path of a libmpi.so"
GPU_SUPPORT_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h
SWITCHES = {
    "openmpi": ("OMPI_MCA_opal_cuda_support", "OMPI_MCA_mpi_cuda_support"),
    "mpich": ("MPIR_CVAR_ENABLE_GPU",),
}
# of Open MPI 5; in version 4 the code is in the library itself
COMPONENT = "mca_accelerator_cuda.so"
COMPONENT_FOLDERS = ("openmpi", "openmpi3")  # beside the library; the second is Debian's
BUILT_WITH_CUDA = ("opal_built_with_cuda_support", "mpi_built_with_cuda_support")
_PARAMETER = re.compile(r"mca:[^:]+:[^:]+:param:([^:]+):(value|source):(.*)")
# an MPICH built for CUDA is linked with one of them
CUDA_LIBRARIES = (b"libcudart.so", b"libcuda.so")
UCX_LIBRARY = "libucp"
UCX_CUDA_LIBRARY = "libuct_cuda"
UCX_TRANSPORTS = ("all", "cuda", "cuda_copy")  # those that can read device memory
# the base of Open MPI's own folder: the first of these that is set, else /tmp
TEMPORARY_FOLDERS = ("TMPDIR", "TEMP", "TMP")
CMA_SWITCH = "MPIR_CVAR_CH4_CMA_ENABLE"  # since MPICH 5.0 on without being asked for (pmodels#7639)
OMPI_INFO_TIMEOUT_S = 10.0
LDCONFIG_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class MpiLibrary:
    """`path` is the value for MPI4PY_LIBMPI."""

    kind: MpiKind
    path: str

    def launcher(self) -> str:
        """The full path of its mpirun; raises ConfigError if it is not installed."""
        names = LAUNCHERS[self.kind]
        launcher = self.program(names) or next(
            (path for name in names if (path := shutil.which(name))), None
        )
        if launcher is None:
            raise ConfigError(
                f"no launcher for {self.path}: none of {', '.join(names)} is installed; install one"
                " of them"
            )
        return launcher

    def program(self, names: Sequence[str]) -> str | None:
        """The full path of the first of these programs that is installed beside the library."""
        prefixes = [*Path(self.path).parents[1:4], *Path(self.path).resolve().parents[1:4]]
        # /bin may be a link to /usr/bin, and Open MPI derives its prefix from the path that it is
        # called by
        folders = [(prefix / "bin").resolve() for prefix in prefixes]
        files = (folder / name for name in names for folder in folders)
        return next((str(file) for file in files if os.access(file, os.X_OK)), None)

    @property
    def version(self) -> int:
        """5 for Open MPI with PRRTE's options, 4 for older versions, 0 for MPICH."""
        if self.kind != "openmpi":
            return 0
        return 5 if Path(self.launcher()).name == "prterun" else 4


def find(choice: str) -> MpiLibrary | None:
    """The library for a value of `backend.library`; None if none is found. Raises ConfigError for
    an invalid value.

    auto: MPI4PY_LIBMPI, else the kind of the launcher that started this process, else Open MPI,
    else MPICH.
    """
    if choice not in ("auto", *SONAMES):
        return _from_path(choice)
    if choice == "auto" and os.environ.get("MPI4PY_LIBMPI"):
        return _from_path(os.environ["MPI4PY_LIBMPI"], "MPI4PY_LIBMPI")
    kinds = [kind for kind in SONAMES if choice in (kind, "auto")]
    started_by = launcher_kind(os.environ)
    kinds.sort(key=lambda kind: kind != started_by)  # the others in the order of the table
    for kind in kinds:
        for file in (folder / soname for folder in _library_folders() for soname in SONAMES[kind]):
            if file.exists() and _kind_of(file) == kind:
                return MpiLibrary(kind, str(file))
    return None


def load_mpi(library: str, threads: str, records_ucx: bool = False) -> Any:
    """mpi4py's MPI module, initialised at this thread level with the chosen library; `records_ucx`:
    what UCX logs meanwhile, which rank 0 keeps.

    Raises ConfigError if the launcher of the other library started this rank: under Open MPI's
    mpirun, MPICH aborts in MPI_Init; under MPICH's, each rank of Open MPI would have a world of its
    own.
    """
    import mpi4py

    chosen = find(library)
    if chosen is not None:
        kind = launcher_kind(os.environ)
        if (
            kind is not None
            and kind != chosen.kind
            and (kind == "openmpi" or HYDRA_LOCAL_RANK in os.environ)
        ):
            raise ConfigError(
                f"backend.library={chosen.path} is {chosen.kind}, but {kind}'s launcher started"
                f" this rank; start with {LAUNCHERS[chosen.kind][0]}, or set backend.library={kind}"
            )
        os.environ["MPI4PY_LIBMPI"] = chosen.path
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    # mpi4py loads the library, and UCX with it
    is_loaded = "mpi4py.MPI" in sys.modules
    with ucx_log().begun(os.environ) if records_ucx and not is_loaded else nullcontext():
        from mpi4py import MPI

        if not MPI.Is_initialized():
            _initialise(MPI, getattr(MPI, f"THREAD_{threads.upper()}"))
    return MPI


def _initialise(mpi: Any, thread_level: int) -> None:
    """MPI_Init_thread without Python's lock, which mpi4py's own call keeps: other threads must run
    while it waits for ranks that do not come."""
    try:
        library = loaded_library()
    except CommbenchError:  # under a name that is not known
        mpi.Init_thread(thread_level)
        return
    provided = ctypes.c_int()
    status = library.MPI_Init_thread(None, None, thread_level, ctypes.byref(provided))
    if status != mpi.SUCCESS:
        raise RuntimeError(f"MPI_Init_thread returned {status}")
    for communicator in (mpi.COMM_SELF, mpi.COMM_WORLD):  # as mpi4py does: exceptions, no abort
        communicator.Set_errhandler(mpi.ERRORS_RETURN)


def give_up(status: int) -> None:
    """Make MPICH's mpiexec end the world if this rank leaves before MPI_Init: the others would wait
    for it forever.

    Writes two lines of PMI-1 to the file descriptor that mpiexec passed to this rank. Other
    launchers need no help.
    """
    if HYDRA_LOCAL_RANK not in os.environ or "mpi4py.MPI" in sys.modules:
        return
    commands = f"cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode={status}\n"
    with suppress(KeyError, ValueError, OSError):  # another PMI
        os.write(int(os.environ["PMI_FD"]), commands.encode())


def library_name(mpi: Any) -> str:
    """`Open MPI v5.0.11` or `MPICH Version: 5.0.2`: the beginning of MPI_Get_library_version."""
    return fact_text(re.split("[\n,]", mpi.Get_library_version())[0])


def launcher_mismatch(expected: int, mpi: Any) -> str:
    """The message about a launcher that belongs to another MPI library."""
    options = "; ".join(filter(None, (launcher.mpi_options for launcher in launchers())))
    return (
        f"the launcher started {expected} ranks but {library_name(mpi)} sees {mpi.COMM_WORLD.size}:"
        " this MPI library does not belong to the launcher; start with its own launcher"
        f" ({options}) or set backend.library ({CHOICES})"
    )


def launcher_kind(environ: Mapping[str, str]) -> MpiKind | None:
    """The library whose launcher started this process, by the variables that it exports; "mpich"
    for MVAPICH, and for the tasks of a scheduler that exports PMI_RANK."""
    if OPEN_MPI_RANK in environ:
        return "openmpi"
    return "mpich" if {PMI_RANK, MVAPICH_RANK} & set(environ) else None


def _from_path(text: str, name: str = "backend.library") -> MpiLibrary:
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"{name}={text} is not a file; allowed: {CHOICES}")
    kind = _kind_of(path)
    if kind is None:
        raise ConfigError(
            f"{name}={text} is neither Open MPI nor MPICH; known file names:"
            f" {', '.join(ALL_SONAMES)}"
        )
    return MpiLibrary(kind, str(path))


def _kind_of(path: Path) -> MpiKind | None:
    name = path.resolve().name
    for kind, sonames in SONAMES.items():
        if name.startswith(sonames) or path.name.startswith(sonames):
            return kind
    return None


def _library_folders() -> Iterator[Path]:
    """The lib folder of this Python environment, then those of the dynamic loader."""
    yield Path(sys.prefix) / "lib"
    yield from (
        Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder
    )
    listing = ""
    with suppress(NoReading):
        listing = command_output(["/sbin/ldconfig", "-p"], LDCONFIG_TIMEOUT_S)
    yield from (
        Path(line.split()[-1]).parent
        for line in listing.splitlines()
        if line.strip().startswith(ALL_SONAMES)
    )


@cache
def loaded_library() -> ctypes.CDLL:
    """The libmpi of this process. mpi4py loads it privately, so its symbols are found by its path.

    Raises CommbenchError. Cached, because with torch loaded the memory map takes milliseconds to
    read.
    """
    for path in sorted(mapped_files(LOADED_NAMES)):
        library = ctypes.CDLL(path)
        if hasattr(library, "MPI_Send"):
            return library
    raise CommbenchError("no loaded MPI library has MPI_Send; use engine=python")


# ---------------------------------------------------------------- what they need of the system


def system_problem(library: MpiLibrary, environ: Mapping[str, str] = os.environ) -> str | None:
    """Why this library would fail or hang here, and say nothing that helps."""
    if library.kind == "openmpi":
        return _temporary_folder_problem(environ)
    return _cma_problem(library, environ)


def _temporary_folder_problem(environ: Mapping[str, str]) -> str | None:
    started = launcher_kind(environ) is not None or PMIX_RANK in environ
    if started or any("MCA" in name and "tmpdir" in name for name in environ):
        return None
    folder = next((environ[name] for name in TEMPORARY_FOLDERS if environ.get(name)), "/tmp")
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    return (
        f"Open MPI's folder for temporary files, {folder}, can't be written;"
        " export TMPDIR=FOLDER with one that can"
    )


def _cma_problem(library: MpiLibrary, environ: Mapping[str, str]) -> str | None:
    """MPICH reads the memory of other ranks, and waits forever where the system forbids that."""
    if environ.get(CMA_SWITCH, "").lower() in NO or may_read_processes():
        return None
    program = library.program(("mpichversion",))
    printed = ""
    with suppress(NoReading):
        printed = "" if program is None else command_output([program], OMPI_INFO_TIMEOUT_S)
    version = re.search(r"MPICH Version:\s*(\d+)", printed)
    if version is None or (int(version[1]) < 5 and CMA_SWITCH not in environ):
        return None
    return (
        "MPICH copies messages with process_vm_readv (CMA), which is forbidden here; allow ptrace"
        f" (docker run --cap-add=SYS_PTRACE), or turn CMA off with env.{CMA_SWITCH}=0"
    )


def may_read_processes() -> bool:
    """Whether process_vm_readv may be called: the seccomp profile of a container may forbid it."""
    content = ctypes.create_string_buffer(1)
    address = ctypes.c_void_p(ctypes.addressof(content))
    # struct iovec: an address and a length
    vector = (ctypes.c_void_p * 2)(address, 1)
    read = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    no_flags = ctypes.c_ulong(0)
    count = ctypes.c_ulong(1)
    return read is None or read(os.getpid(), vector, count, vector, count, no_flags) == 1


# ---------------------------------------------------------------- device memory


@dataclass(frozen=True)
class CudaAware:
    """Whether a library takes device memory, None if unknown; `source` is where this is known
    from."""

    answer: bool | None
    source: str

    def __str__(self) -> str:
        text = {
            True: "takes device memory",
            False: "takes no device memory",
            None: "may not take device memory",
        }
        return f"{text[self.answer]} ({self.source})"


def cuda_aware_by_files(library: MpiLibrary, environ: Mapping[str, str] = os.environ) -> CudaAware:
    """Whether a library is CUDA-aware according to its files and the environment; it is not
    loaded."""
    switches = [
        f"{name}={environ[name]}"
        for name in SWITCHES[library.kind]
        if environ.get(name, "").lower() in NO
    ]
    accelerator = environ.get("OMPI_MCA_accelerator", "")
    if library.kind == "openmpi" and not includes_any(accelerator, ("cuda",)):
        switches.append(f"OMPI_MCA_accelerator={accelerator}")
    if switches:
        return CudaAware(False, switches[0])
    return (
        _open_mpi_by_files(library) if library.kind == "openmpi" else _mpich_by_file(library.path)
    )


@cache
def _open_mpi_by_files(library: MpiLibrary) -> CudaAware:
    folders = [Path(library.path).parent, Path(library.path).resolve().parent]
    if any(
        (folder / name / COMPONENT).exists() for folder in folders for name in COMPONENT_FOLDERS
    ):
        return CudaAware(True, COMPONENT)
    try:
        parameters = open_mpi_parameters(library)
    except NoReading as error:
        return CudaAware(None, f"no {COMPONENT}, and {error}")
    values = [parameters[name].get("value") for name in BUILT_WITH_CUDA if name in parameters]
    answer = values[0] == "true" if values else None
    return CudaAware(answer, "ompi_info: built_with_cuda_support")


def open_mpi_parameters(
    library: MpiLibrary, environ: Mapping[str, str] | None = None
) -> dict[str, dict[str, str]]:
    """The MCA parameters by name: `value` and `source`. Raises NoReading where ompi_info does not
    answer."""
    program = library.program(("ompi_info", "ompi_info.openmpi"))
    if program is None:
        raise NoReading(f"there is no ompi_info beside {library.path}")
    printed = command_output([program, "--parsable", "--all"], OMPI_INFO_TIMEOUT_S, environ)
    parameters = dict[str, dict[str, str]]()
    for line in printed.splitlines():
        if match := _PARAMETER.fullmatch(line):
            parameters.setdefault(match[1], {})[match[2]] = match[3]
    return parameters


@cache
def _mpich_by_file(path: str) -> CudaAware:
    """The names of the libraries that a library is linked with are plain text in its file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return CudaAware(None, f"{path}: {error}")
    if not content:
        return CudaAware(None, f"{path} is empty")
    name = next((name for name in CUDA_LIBRARIES if name in content), None)
    linked = "no CUDA library" if name is None else name.decode()
    return CudaAware(name is not None, f"{Path(path).name} is linked with {linked}")


def cuda_aware_by_query() -> CudaAware:
    """Whether the loaded library says that it is CUDA-aware, after MPI_Init; this overrides
    `cuda_aware_by_files`."""
    library = loaded_library()
    # MPICH's function for all kinds of GPUs first: its other one aborts in an MPICH 3 built without
    # CUDA (AMReX #4820)
    if hasattr(library, "MPIX_GPU_query_support"):
        flag = ctypes.c_int(0)
        status = library.MPIX_GPU_query_support(GPU_SUPPORT_CUDA, ctypes.byref(flag))
        return CudaAware(status == 0 and flag.value != 0, "MPIX_GPU_query_support")
    if not hasattr(library, "MPIX_Query_cuda_support"):
        return CudaAware(
            None, "the library has neither MPIX_GPU_query_support nor MPIX_Query_cuda_support"
        )
    if library.MPIX_Query_cuda_support() != 1:
        return CudaAware(False, "MPIX_Query_cuda_support")
    problem = ucx_problem(mapped_files((UCX_LIBRARY, UCX_CUDA_LIBRARY)), os.environ)
    if problem is not None:
        return CudaAware(False, f"MPIX_Query_cuda_support says yes, but {problem}")
    return CudaAware(True, "MPIX_Query_cuda_support")


def ucx_problem(mapped: Iterable[str], environ: Mapping[str, str]) -> str | None:
    """Why UCX below Open MPI may not take device memory although Open MPI does; `mapped` are the
    files of UCX that this process has loaded.

    Open MPI does not say which transport it has chosen. If it may be UCX, UCX must be able to.
    """
    loaded = {Path(path).name.partition(".so")[0] for path in mapped}
    if UCX_LIBRARY not in loaded or not includes_any(environ.get("OMPI_MCA_pml", ""), ("ucx",)):
        return None
    if UCX_CUDA_LIBRARY not in loaded:
        return "UCX is loaded without libuct_cuda.so; set OMPI_MCA_pml=ob1 to run without UCX"
    transports = environ.get("UCX_TLS", "")
    return (
        None
        if includes_any(transports, UCX_TRANSPORTS)
        else f"UCX_TLS={transports} leaves out cuda_copy"
    )
