"""Counts beyond an int, with the limit lowered so that small buffers meet it; in a process of its
own, for MPI_Init."""

from __future__ import annotations

import subprocess
import sys

import pytest

from commbench.hardware.mpi_library import find

PROGRAM = """
import sys
import numpy as np
from commbench.backends.mpi.lowering import typed
from commbench.core.errors import Unsupported
from commbench.hardware.mpi_library import load_mpi

MPI = load_mpi(sys.argv[1], "funneled")
for dtype, itemsize in (("float32", 4), ("uint8", 1), ("bfloat16", 2)):
    for count in (1, 9, 10, 11, 20, 25, 103):
        kind = typed(MPI, dtype, count, None, limit=10)
        assert kind[0] * kind[1].Get_size() == count * itemsize, (dtype, count)
        assert kind[0] <= 10
        sent = np.arange(count * itemsize, dtype=np.uint8)
        got = np.zeros_like(sent)
        request = MPI.COMM_SELF.Irecv([got, *kind], 0, 0)
        MPI.COMM_SELF.Send([sent, *kind], 0, 0)
        request.Wait()
        assert (got == sent).all(), (dtype, count)
for dtype, count in (("float32", 11), ("float16", 3)):
    try:
        typed(MPI, dtype, count, "sum", limit=10)
    except Unsupported as error:
        assert "2^31-1" in str(error) or "cannot reduce" in str(error)
    else:
        raise AssertionError("a reduction took a count that it has no type for")
print("ok")
"""


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_large_counts_travel_as_one_derived_type(library: str) -> None:
    assert find(library) is not None, "make test installs both wheels"
    words = ["timeout", "-k", "5", "60", sys.executable, "-c", PROGRAM, library]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr[-2000:]
