"""Packages that commbench can do without, and what pip calls the extra that installs each."""

from __future__ import annotations

from importlib.util import find_spec

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


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The sentence for an import that failed; None where it is no package of an extra."""
    module = (error.name or "").partition(".")[0]
    return how_to_install(module) if module in EXTRAS else None
