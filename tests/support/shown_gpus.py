"""Machines with GPUs, shown to a real Python process by a stand-in for its driver's libraries (shown_gpus_driver.c).

So pynvml, ctypes and the layouts of structs are the real ones; what the driver would say is written in a text.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT

SOURCE = SUPPORT / "shown_gpus_driver.c"
LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")
CHILD_S = 60
GIB = 2**30


@cache
def libraries(old: bool = False) -> Path:
    """The folder of the two libraries, compiled once; skips where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of the NVIDIA driver")
    folder = Path(tempfile.mkdtemp(prefix="shown-gpus-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in LIBRARIES:
        command = [compiler, "-shared", "-fPIC", *(["-DOLD"] if old else []), "-o", str(folder / name), str(SOURCE)]
        subprocess.run(command, check=True, timeout=CHILD_S)
    return folder


def uuid(index: int, kind: str = "GPU") -> str:
    return f"{kind}-{index:08x}-0000-4000-8000-00000000abcd"


def h100(index: int, *more: str) -> str:
    """The lines of one H100 with 18 links; `more` overrides and adds."""
    lines = [f"gpu {uuid(index)}", "name NVIDIA H100 80GB HBM3", f"bus 00000000:{0x1A + index:02X}:00.0"]
    lines += [f"memory {80 * GIB}", f"used {GIB // 2}", "capability 9 0", "mig 0", "links 18", "linkversion 6"]
    return "\n".join([*lines, "pcie 4 5 16 16", "clock 1755", "reasons 1", *more])


def hgx(count: int = 8, *more: str) -> str:
    """GPUs behind NVSwitch: everybody reaches everybody at the best rank; the lines of `more` come first."""
    pairs = [f"peer {gpu} {other} 0 1 1" for gpu in range(count) for other in range(count) if gpu != other]
    return "\n".join([*more, *(h100(index) for index in range(count)), *pairs])


def ask(
    folder: Path,
    machine: str | None,
    code: str,
    *imports: str,
    old: bool = False,
    libs: Iterable[str] = LIBRARIES,
    **env: str,
) -> Any:
    """What `code`, an expression, is worth as JSON in a process on that machine; None is a machine without driver.

    `imports` are statements before it, `libs` the libraries that the machine has.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    if machine is not None:
        (folder / "machine").write_text(machine)
        (folder / "lib").mkdir(exist_ok=True)
        for name in libs:
            shutil.copy(libraries(old) / name, folder / "lib")
        clean |= {"LD_LIBRARY_PATH": str(folder / "lib"), "SHOWN_GPUS": str(folder / "machine")}
    program = "\n".join(["import json, os, sys", *imports, f"print(json.dumps({code}))"])
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean | env, capture_output=True, text=True, timeout=CHILD_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
