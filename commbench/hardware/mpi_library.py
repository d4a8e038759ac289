"""Which MPI library: found without loading it, named by kind, with the launcher that belongs to it."""

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
# names of the launchers by kind, the unambiguous ones first: `mpirun` belongs to whoever was installed last
LAUNCHERS = {
    "openmpi": ("prterun", "mpirun.openmpi", "orterun", "mpirun"),
    "mpich": ("mpiexec.hydra", "mpiexec.mpich", "mpiexec"),
}
THREADS = ("single", "funneled", "serialized", "multiple")
CHOICES = "auto, openmpi, mpich or the full path of a libmpi.so"


@dataclass(frozen=True)
class MpiLibrary:
    """`kind` is openmpi or mpich, `path` what MPI4PY_LIBMPI gets."""

    kind: str
    path: str

    def launcher(self) -> str:
        """The full path of its mpirun; raises ConfigError where it is not installed."""
        own = self.program(LAUNCHERS[self.kind])
        if own is not None:
            return own
        found = next((path for name in LAUNCHERS[self.kind] if (path := shutil.which(name))), None)
        if found is None:
            names = ", ".join(LAUNCHERS[self.kind])
            raise ConfigError(f"no launcher for {self.path}: none of {names} is installed; install one of them")
        return found

    def program(self, names: Sequence[str]) -> str | None:
        """The full path of the first of these programs that is installed beside it."""
        prefixes = [*Path(self.path).parents[1:4], *Path(self.path).resolve().parents[1:4]]
        # /bin may be a link to /usr/bin, and Open MPI reads its prefix from the path it was called by
        folders = [(prefix / "bin").resolve() for prefix in prefixes]
        places = (folder / name for name in names for folder in folders)
        return next((str(place) for place in places if os.access(place, os.X_OK)), None)

    @property
    def version(self) -> int:
        """5 for Open MPI with PRRTE's options, 4 for the older ones, 0 for MPICH."""
        if self.kind != "openmpi":
            return 0
        return 5 if Path(self.launcher()).name == "prterun" else 4


def find(choice: str, environ: Mapping[str, str] | None = None) -> MpiLibrary | None:
    """The library for `backend.library`; None where there is none. Raises ConfigError for a bad choice.

    auto takes MPI4PY_LIBMPI, then the kind of the launcher that this process runs under, then Open MPI.
    """
    environ = os.environ if environ is None else environ
    if choice not in ("auto", *SONAMES):
        return _from_path(choice)
    if choice == "auto" and environ.get("MPI4PY_LIBMPI"):
        return _from_path(environ["MPI4PY_LIBMPI"], "MPI4PY_LIBMPI")
    kinds = (launcher_kind(environ) or "openmpi", "openmpi", "mpich") if choice == "auto" else (choice,)
    for kind in kinds:
        for folder in _folders():
            for soname in SONAMES[kind]:
                if (folder / soname).exists() and _kind_of(folder / soname) == kind:
                    return MpiLibrary(kind, str(folder / soname))
    return None


def load(library: str, threads: str) -> Any:
    """mpi4py's MPI module, initialised at that thread level with the chosen library."""
    import mpi4py

    chosen = find(library)
    if chosen is not None:
        _refuse_stranger(chosen, os.environ)
        os.environ["MPI4PY_LIBMPI"] = chosen.path
    mpi4py.rc.thread_level = threads
    from mpi4py import MPI

    return MPI


def _refuse_stranger(library: MpiLibrary, environ: Mapping[str, str]) -> None:
    """MPICH under Open MPI's mpirun aborts in MPI_Init, the other way round every rank is alone."""
    kind = launcher_kind(environ)
    started_by_hydra = "MPI_LOCALRANKID" in environ  # PMI_RANK alone may come from Slurm, which serves both
    if kind is not None and kind != library.kind and (kind == "openmpi" or started_by_hydra):
        own = " or ".join(LAUNCHERS[library.kind][:1])
        raise ConfigError(
            f"backend.library={library.path} is {library.kind}, but {kind}'s launcher started this rank; "
            f"start with {own}, or set backend.library={kind}"
        )


def give_up(status: int, environ: Mapping[str, str] = os.environ) -> None:
    """Have MPICH's mpiexec end the world, for a rank that leaves before MPI began: else the others wait for ever.

    Two lines of PMI-1, on the descriptor that mpiexec gave this rank. Does nothing elsewhere.
    """
    if "MPI_LOCALRANKID" not in environ or "mpi4py.MPI" in sys.modules:
        return
    words = f"cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode={status}\n"
    with suppress(KeyError, ValueError, OSError):  # another PMI
        os.write(int(environ["PMI_FD"]), words.encode())


def library_name(mpi: Any) -> str:
    """Open MPI v5.0.11, or MPICH Version: 5.0.2: the first words of what the library says of itself."""
    first = mpi.Get_library_version().split("\n")[0].split(",")[0]
    return " ".join(first.replace("\x00", "").split())


def mismatch(expected: int, mpi: Any) -> str:
    """The text for a library that does not belong to the launcher."""
    library = library_name(mpi)
    return (
        f"the launcher started {expected} ranks but {library} sees {mpi.COMM_WORLD.size}: this MPI library does not "
        f"belong to the launcher; start with its own launcher (of srun: --mpi=pmi2 for MPICH, --mpi=pmix for Open MPI)"
        f" or set backend.library ({CHOICES})"
    )


def launcher_kind(environ: Mapping[str, str]) -> str | None:
    """Which MPI's launcher started this process, from the variables that it exports."""
    if "OMPI_COMM_WORLD_RANK" in environ:
        return "openmpi"
    return "mpich" if "PMI_RANK" in environ else None


def _from_path(text: str, name: str = "backend.library") -> MpiLibrary:
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"{name}={text} is no file; allowed: {CHOICES}")
    kind = _kind_of(path)
    if kind is None:
        known = ", ".join(name for names in SONAMES.values() for name in names)
        raise ConfigError(f"{name}={text} is neither Open MPI nor MPICH; known file names: {known}")
    return MpiLibrary(kind, str(path))


def _kind_of(path: Path) -> str | None:
    name = path.resolve().name
    for kind, sonames in SONAMES.items():
        if any(name.startswith(soname) or path.name.startswith(soname) for soname in sonames):
            return kind
    return None


def _folders() -> Iterator[Path]:
    """This environment's lib first, then the loader's own places."""
    yield Path(sys.prefix) / "lib"
    yield from (Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    try:
        listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        listing = ""
    sonames = tuple(name for names in SONAMES.values() for name in names)
    yield from (Path(line.split()[-1]).parent for line in listing.splitlines() if line.strip().startswith(sonames))
