"""The launcher that belongs to a library, wherever the distribution has linked it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commbench.hardware import mpi_library
from commbench.hardware.mpi_library import MpiLibrary

QUICK = ("timing=fixed", "timing.repetitions=5", "benchmark=p2p_latency", "sizes=[8]", "layout=1x2")
# what ldconfig lists on Debian, where /lib and /bin are links
LINKED = "/lib/x86_64-linux-gnu/libmpi.so.40"
# a filter of system calls that refuses process_vm_readv (310), as docker's profile may
FILTERED = """
import ctypes, struct
from commbench.hardware.mpi_library import may_read_processes
print(may_read_processes())
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)  # no new privileges
load, equal, end = 0x20, 0x15, 0x06
steps = [(load, 0, 0, 0), (equal, 0, 1, 310), (end, 0, 0, 0x50001), (end, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
assert libc.syscall(317, 1, 0, program) == 0  # seccomp, set a filter
print(may_read_processes())
"""


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


# ---------------------------------------------------------------- what they need of the system


def test_open_mpi_needs_a_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = mpi_library.MpiLibrary("openmpi", "/lib/libmpi.so.40")
    monkeypatch.setattr(os, "access", lambda path, mode: path == str(tmp_path))
    problem = mpi_library.system_problem(library, {"HOME": "/"})
    assert problem is not None and "files, /tmp, can't be written; export TMPDIR=" in problem
    problem = mpi_library.system_problem(library, {"TMP": "/scratch"})
    assert problem is not None and "files, /scratch, can't" in problem
    good: tuple[dict[str, str], ...] = (
        {"TMPDIR": str(tmp_path), "TMP": "/scratch"},
        {"PRTE_MCA_prte_tmpdir_base": "/elsewhere"},
        {"OMPI_COMM_WORLD_RANK": "0"},  # its launcher has found one
        {"PMIX_RANK": "0"},
    )
    for environ in good:
        assert mpi_library.system_problem(library, environ) is None, environ
    mpich = mpi_library.MpiLibrary("mpich", "/lib/libmpi.so.12")
    assert mpi_library.system_problem(mpich, {}) is None, "it makes no such folder"


@pytest.mark.parametrize(
    ("version", "environ", "is_refused"),
    [
        ("5.0.2", {}, True),
        ("5.0.2", {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}, False),
        ("4.3.0", {}, False),
        ("4.3.0", {"MPIR_CVAR_CH4_CMA_ENABLE": "1"}, True),
        (None, {}, False),
    ],
)
def test_mpich_needs_the_memory_of_other_processes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    environ: dict[str, str],
    is_refused: bool,
) -> None:
    (tmp_path / "bin").mkdir()
    if version is not None:
        program = tmp_path / "bin/mpichversion"
        program.write_text(f"#!/bin/sh\necho 'MPICH Version:      {version}'\n")
        program.chmod(0o755)
    library = mpi_library.MpiLibrary("mpich", str(tmp_path / "lib/libmpi.so.12"))
    assert mpi_library.system_problem(library, environ) is None, "nothing is forbidden"
    monkeypatch.setattr(mpi_library, "may_read_processes", lambda: False)
    problem = mpi_library.system_problem(library, environ)
    assert (problem is not None) is is_refused
    if problem is not None:
        assert "(CMA)" in problem and "--cap-add=SYS_PTRACE" in problem
        assert "env.MPIR_CVAR_CH4_CMA_ENABLE=0" in problem


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
@pytest.mark.skipif(not mpi_library.may_read_processes(), reason="a filter is here already")
def test_a_filter_of_system_calls_is_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILTERED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", "False"]
