"""Which torch this Python imports, from where, and whether the system's Python has another one;
read from files, without importing torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

from .sources import Facts, fact_text

# below the folder that a Python is installed in; dist-packages are Debian's
PACKAGES = ("lib*/python3*/*-packages", "local/lib*/python3*/*-packages")
SYSTEM = Path("/usr")


def torch_facts(_: Path) -> Facts:
    """The commit that torch was built from, the CUDA or HIP version that it was built for, where it
    is, and the torch of the system's Python where that is another one."""
    version = torch_build()
    names = {"torch_git_commit": "git_version", "torch_cuda": "cuda", "torch_hip": "hip"}
    folder = torch_folder()
    return {
        **{
            f"versions.{fact}": fact_text(str(version[name]))
            for fact, name in names.items()
            if version.get(name)
        },
        "versions.torch_from": folder and fact_text(place_of(folder)),
        "versions.torch_of_system": other_torch(),
    }


def torch_folder() -> Path | None:
    """The folder of the package; None if it is not installed."""
    with suppress(ImportError, ValueError):
        package = find_spec("torch")
        if package is not None and package.origin is not None:
            return Path(package.origin).parent
    return None


def torch_build() -> Mapping[str, object]:
    """The values in torch's version.py; empty if that file can't be read."""
    folder = torch_folder()
    if folder is not None:
        with suppress(OSError, ValueError, SyntaxError):
            return run_path(str(folder / "version.py"))
    return {}


def place_of(folder: Path) -> str:
    """Whose package that is: `the venv /opt/venv`, `PYTHONPATH`, `the Python in /usr`; else the
    folder around it."""
    on_path = map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    if folder.parent in on_path:
        return f"PYTHONPATH ({folder.parent})"
    if folder.is_relative_to(sys.prefix):
        kind = "the Python in" if sys.prefix == sys.base_prefix else "the venv"
        return f"{kind} {sys.prefix}"
    if folder.is_relative_to(sys.base_prefix):
        return f"the Python in {sys.base_prefix}"
    return str(folder.parent)


@cache
def other_torch(bases: tuple[Path, ...] = (Path(sys.base_prefix), SYSTEM)) -> str | None:
    """`torch 2.11.0a0 in /usr/lib/python3/dist-packages` where this Python is a venv with a torch
    of its own, and the system's Python has another version; else None."""
    folder = torch_folder()
    is_own = folder is not None and folder.is_relative_to(sys.prefix)
    if folder is None or not is_own or sys.prefix == sys.base_prefix:
        return None
    own = set(_versions(folder.parent))
    found = (
        (version, packages)
        for base in dict.fromkeys(bases)
        for pattern in PACKAGES
        for packages in sorted(base.glob(pattern))
        for version in _versions(packages)
    )
    others = (f"torch {version} in {packages}" for version, packages in found if version not in own)
    return next(map(fact_text, others), None)


def other_torch_text(other: str) -> str:
    """What `versions.torch_of_system` means for a run."""
    return (
        f"this is the torch of a venv, and the system's Python has {other}: a job that uses it may"
        " have another communication library than this run"
    )


def _versions(packages: Path) -> list[str]:
    """Of torch in a folder of packages, by the name of its metadata's folder."""
    names = sorted(path.name for path in packages.glob("torch-*.dist-info"))
    return [name.removeprefix("torch-").removesuffix(".dist-info") for name in names]
