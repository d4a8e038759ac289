"""Addresses of C functions in the MPI library that mpi4py has loaded."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

from commbench.core.errors import CommbenchError


@cache
def loaded_library() -> ctypes.CDLL:
    """The libmpi in this process: mpi4py loads it privately, so its symbols are found by its path.

    Cached: a process has one, and the map of torch's memory takes milliseconds to read. Raises CommbenchError.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = sorted({line.split()[-1] for line in lines if re.search(r"/libmpi(ch|_cray)?\.so", line)})
    for path in paths:
        library = ctypes.CDLL(path)
        if hasattr(library, "MPI_Send"):
            return library
    raise CommbenchError("no loaded MPI library has MPI_Send; use engine=python")


def symbol(library: ctypes.CDLL, name: str) -> int:
    """Where a function of the library begins; memcpy comes from the C library."""
    source = ctypes.CDLL(None) if name == "memcpy" else library
    return ctypes.cast(getattr(source, name), ctypes.c_void_p).value or 0
