"""The launcher that belongs to a library, wherever the distribution has linked it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commbench.hardware.mpi_library import MpiLibrary

QUICK = ("timing=fixed", "timing.repetitions=5", "benchmark=p2p_latency", "sizes=[8]", "layout=1x2")
# what ldconfig lists on Debian, where /lib and /bin are links
LINKED = "/lib/x86_64-linux-gnu/libmpi.so.40"


def test_a_linked_bin_is_followed(tmp_path: Path) -> None:
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "lib" / "arch").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "mpirun.openmpi").touch(0o755)
    (tmp_path / "usr" / "lib" / "arch" / "libmpi.so.40").touch()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").symlink_to("usr/lib")
    library = MpiLibrary("openmpi", str(tmp_path / "lib" / "arch" / "libmpi.so.40"))
    assert library.launcher() == str(tmp_path / "usr" / "bin" / "mpirun.openmpi")


@pytest.mark.long
def test_debians_open_mpi_starts_its_own_world(world: Any) -> None:
    if not Path(LINKED).exists():
        pytest.skip("Debian's openmpi-bin and libopenmpi3 are not installed")
    run = world("commbench", "backend=mpi", f"backend.library={LINKED}", *QUICK)
    assert (run.cases.status == "ok").all()
