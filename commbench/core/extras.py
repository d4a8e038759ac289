"""Packages that commbench needs, and those that it can do without, with what pip calls the extra
that installs each."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

REQUIRED = ("torch", "hydra", "omegaconf", "numpy", "psutil", "rich")
EXTRAS = {
    "mpi4py": "mpi",
    "numba": "native",
    "llvmlite": "native",
    "pyarrow": "parquet",
    "pandas": "report",
    "matplotlib": "report",
    "jinja2": "report",
    "pynvml": "gpu",
}


def is_installed(module: str) -> bool:
    return find_spec(module) is not None


def how_to_install(module: str) -> str:
    """`pandas is not installed: pip install 'commbench[report]'`, for a module of EXTRAS."""
    return f"{module} is not installed: pip install 'commbench[{EXTRAS[module]}]'"


def missing_package(error: ModuleNotFoundError) -> str | None:
    """The sentence for an import that failed; None where it is none of these packages."""
    module = (error.name or "").partition(".")[0]
    if module in EXTRAS:
        return how_to_install(module)
    if module not in REQUIRED:
        return None
    clone = Path(__file__).parents[2]
    source = clone if (clone / "setup.cfg").is_file() else "commbench"
    return f"{module} is not installed: {sys.executable} -m pip install {source}"
