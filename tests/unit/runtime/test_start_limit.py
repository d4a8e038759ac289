"""Waits before the first heartbeat: each ends its process with one line, also inside a library."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import AS_ROOT

from commbench.core.layout import Layout
from commbench.hardware.mpi_library import find
from commbench.runtime.launchers.mpirun import Mpirun

BLOCKED = """
import os, sys, time
from commbench.core.case import RankIdentity
from commbench.runtime import exit_protocol
from commbench.runtime.start_limit import ends_within
exit_protocol.RANK_0_FIRST_S = 0.5
identity = RankIdentity("mpirun", int(sys.argv[1]), 2, int(sys.argv[1]))
with ends_within(5.0, "a short call", lambda: "", identity):
    pass
with ends_within(0.2, "the call", lambda: "plug it in", identity):
    os.read(os.pipe()[0], 1)
"""
# rank 1 does not come to MPI_Init, where rank 0 waits for it
ALONE = """
import os, time
from commbench.backends.mpi.backend import Mpi
from commbench.cli.rank import identity_here
from commbench.runtime import rendezvous
identity = identity_here()
if identity.rank == 1:
    time.sleep(100)
rendezvous.CONNECT_S = 1.0
rendezvous.store_over_mpi(identity, Mpi(library=os.environ["LIBRARY"]), None)
"""


def ended(
    words: Sequence[str], environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, timeout=60, env=environ, check=False
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_call_that_never_returns_ends_with_one_line(rank: int) -> None:
    done = ended([sys.executable, "-c", BLOCKED, str(rank)])
    assert done.returncode == 3
    name, _, text = done.stderr.rpartition("no end of the call after 0.2 s: plug it in\n")
    assert text == "" and "\n" not in name
    assert name.startswith(f"commbench: rank {rank} on ")


@pytest.mark.parametrize("kind", ["openmpi", pytest.param("mpich", marks=pytest.mark.long)])
def test_a_rank_that_does_not_come_to_mpi_init_ends_the_others(kind: str, tmp_path: Path) -> None:
    library = find(kind)
    assert library is not None, f"{kind}: make test installs both wheels"
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    command = Mpirun().command(Layout(1, 2), (), kind, ())
    command[command.index("-m") :] = [str(script)]
    environ = {**os.environ, "LIBRARY": kind, "MPI4PY_LIBMPI": library.path, **AS_ROOT}
    begin_s = time.monotonic()
    done = ended(command, environ)
    assert time.monotonic() - begin_s < 30
    lines = [line for line in done.stderr.splitlines() if line.startswith("commbench: ")]
    assert done.returncode != 0 and len(lines) == 1, done.stderr
    assert "no end of MPI_Init after 1 s: a rank has not started, or the hosts do not" in lines[0]
