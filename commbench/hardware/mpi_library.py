"""MPI libraries: found without loading them, identified as Open MPI or MPICH, with the launcher of each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.core.errors import ConfigError

SONAMES = {"openmpi": ("libmpi.so.40",), "mpich": ("libmpi.so.12", "libmpich.so.12")}
# the unambiguous names first: `mpirun` belongs to whichever was installed last
LAUNCHERS = {
    "openmpi": ("prterun", "mpirun.openmpi", "orterun", "mpirun"),
    "mpich": ("mpiexec.hydra", "mpiexec.mpich", "mpiexec"),
}
# which mpirun started a process, by what it exports; PMI_RANK alone may come from Slurm, which serves both libraries
OPEN_MPI_RANK, PMI_RANK, HYDRA_LOCAL_RANK = "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID"
THREADS = ("single", "funneled", "serialized", "multiple")
CHOICES = "auto, openmpi, mpich or the full path of a libmpi.so"


@dataclass(frozen=True)
class MpiLibrary:
    """`kind` is openmpi or mpich, `path` is the value for MPI4PY_LIBMPI."""

    kind: str
    path: str

    def launcher(self) -> str:
        """The full path of its mpirun; raises ConfigError if it is not installed."""
        names = LAUNCHERS[self.kind]
        launcher = self.program(names) or next((path for name in names if (path := shutil.which(name))), None)
        if launcher is None:
            raise ConfigError(
                f"no launcher for {self.path}: none of {', '.join(names)} is installed; install one of them"
            )
        return launcher

    def program(self, names: Sequence[str]) -> str | None:
        """The full path of the first of these programs that is installed beside the library."""
        prefixes = [*Path(self.path).parents[1:4], *Path(self.path).resolve().parents[1:4]]
        # /bin may be a link to /usr/bin, and Open MPI reads its prefix from the path it was called by
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
    """The library for `backend.library`; None if there is none. Raises ConfigError for an invalid choice.

    auto is MPI4PY_LIBMPI, else the kind of the launcher that started this process, else Open MPI, else MPICH.
    """
    if choice not in ("auto", *SONAMES):
        return _from_path(choice)
    if choice == "auto" and os.environ.get("MPI4PY_LIBMPI"):
        return _from_path(os.environ["MPI4PY_LIBMPI"], "MPI4PY_LIBMPI")
    kinds = (launcher_kind(os.environ) or "openmpi", "openmpi", "mpich") if choice == "auto" else (choice,)
    for kind in dict.fromkeys(kinds):
        for file in (folder / soname for folder in _library_folders() for soname in SONAMES[kind]):
            if file.exists() and _kind_of(file) == kind:
                return MpiLibrary(kind, str(file))
    return None


def load(library: str, threads: str) -> Any:
    """mpi4py's MPI module, initialized at that thread level with the chosen library.

    Raises ConfigError if the other MPI's launcher started this rank: MPICH under Open MPI's mpirun aborts in MPI_Init,
    and with Open MPI under MPICH's every rank would be alone.
    """
    import mpi4py

    chosen = find(library)
    if chosen is not None:
        kind = launcher_kind(os.environ)
        if kind is not None and kind != chosen.kind and (kind == "openmpi" or HYDRA_LOCAL_RANK in os.environ):
            raise ConfigError(
                f"backend.library={chosen.path} is {chosen.kind}, but {kind}'s launcher started this rank; "
                f"start with {LAUNCHERS[chosen.kind][0]}, or set backend.library={kind}"
            )
        os.environ["MPI4PY_LIBMPI"] = chosen.path
    mpi4py.rc.thread_level = threads
    from mpi4py import MPI

    return MPI


def give_up(status: int) -> None:
    """Let MPICH's mpiexec end the world when a rank leaves before MPI_Init: the others would wait for it forever.

    Writes two lines of PMI-1 to the file descriptor that mpiexec passed to this rank; elsewhere it does nothing.
    """
    if HYDRA_LOCAL_RANK not in os.environ or "mpi4py.MPI" in sys.modules:
        return
    commands = f"cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode={status}\n"
    with suppress(KeyError, ValueError, OSError):  # another PMI
        os.write(int(os.environ["PMI_FD"]), commands.encode())


def library_name(mpi: Any) -> str:
    """`Open MPI v5.0.11` or `MPICH Version: 5.0.2`: the beginning of MPI_Get_library_version."""
    first = mpi.Get_library_version().split("\n")[0].split(",")[0]
    return " ".join(first.replace("\x00", "").split())


def mismatch(expected: int, mpi: Any) -> str:
    """The message for a library that does not belong to the launcher."""
    return (
        f"the launcher started {expected} ranks but {library_name(mpi)} sees {mpi.COMM_WORLD.size}: this MPI library "
        "does not belong to the launcher; start with its own launcher (with srun: --mpi=pmi2 for MPICH, --mpi=pmix for "
        f"Open MPI) or set backend.library ({CHOICES})"
    )


def launcher_kind(environ: Mapping[str, str]) -> str | None:
    """Which MPI's launcher started this process, from the variables that it exports."""
    if OPEN_MPI_RANK in environ:
        return "openmpi"
    return "mpich" if PMI_RANK in environ else None


def _from_path(text: str, name: str = "backend.library") -> MpiLibrary:
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"{name}={text} is not a file; allowed: {CHOICES}")
    kind = _kind_of(path)
    if kind is None:
        known = ", ".join(name for names in SONAMES.values() for name in names)
        raise ConfigError(f"{name}={text} is neither Open MPI nor MPICH; known file names: {known}")
    return MpiLibrary(kind, str(path))


def _kind_of(path: Path) -> str | None:
    name = path.resolve().name
    for kind, sonames in SONAMES.items():
        if name.startswith(sonames) or path.name.startswith(sonames):
            return kind
    return None


def _library_folders() -> Iterator[Path]:
    """The lib folder of this Python environment first, then those of the dynamic loader."""
    yield Path(sys.prefix) / "lib"
    yield from (Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    try:
        listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        listing = ""
    sonames = tuple(name for names in SONAMES.values() for name in names)
    yield from (Path(line.split()[-1]).parent for line in listing.splitlines() if line.strip().startswith(sonames))
