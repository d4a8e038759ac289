"""Machines with GPUs, shown to a real Python process by a stand-in for its driver's libraries
(shown_gpus_driver.c).

So pynvml, ctypes and the layouts of structs are the real ones; what the driver would say is written
in a text.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from places import ROOT, SUPPORT

SOURCE = SUPPORT / "shown_gpus_driver.c"
CACHE = ROOT / ".pytest_cache" / "shown_gpus"
LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")
CHILD_S = 60
GIB = 2**30


@cache
def libraries(old: bool = False) -> Path:
    """The folder of the two libraries; skips where there is no compiler.

    All processes of the tests have the same, compiled once: a warm python is for one value of
    LD_LIBRARY_PATH.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of the NVIDIA driver")
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    folder = CACHE / (f"{source}-old" if old else source)
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=CACHE))
    for name in LIBRARIES:
        words = ["-shared", "-fPIC", f"-Wl,-soname,{name}", *(["-DOLD"] if old else [])]
        command = [compiler, *words, "-o", str(fresh / name), str(SOURCE)]
        subprocess.run(command, check=True, timeout=CHILD_S)
    try:
        fresh.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(fresh)
    return folder


def uuid(index: int, kind: str = "GPU") -> str:
    return f"{kind}-{index:08x}-0000-4000-8000-00000000abcd"


def h100(index: int, *more: str) -> str:
    """The lines of one H100 with 18 links; `more` overrides and adds."""
    lines = [
        f"gpu {uuid(index)}",
        "name NVIDIA H100 80GB HBM3",
        f"bus 00000000:{0x1A + index:02X}:00.0",
    ]
    lines += [
        f"memory {80 * GIB}",
        f"used {GIB // 2}",
        "capability 9 0",
        "mig 0",
        "links 18",
    ]
    return "\n".join([*lines, "pcie 4 5 16 16", "clock 1755", "reasons 1", *more])


def hgx(count: int = 8, *more: str) -> str:
    """GPUs behind NVSwitch: everybody reaches everybody at the best rank; the lines of `more` come
    first."""
    pairs = [
        f"peer {gpu} {other} 0 1 1"
        for gpu in range(count)
        for other in range(count)
        if gpu != other
    ]
    return "\n".join([*more, *(h100(index) for index in range(count)), *pairs])


def shown(folder: Path, machine: str, *path: Path, **more: str) -> dict[str, str]:
    """The environment of a process that is shown this machine, with these folders on its
    PYTHONPATH."""
    (folder / "machine").write_text(machine)
    libraries_path = str(libraries())
    python_path = os.pathsep.join(map(str, path))
    return {
        "LD_LIBRARY_PATH": libraries_path,
        "SHOWN_GPUS": str(folder / "machine"),
        "PYTHONPATH": python_path,
    } | more


def shown_to_cupy(folder: Path, gpus: int) -> dict[str, str]:
    """As `shown`, with a stand-in for CuPy, and one for NCCL's library
    (tests/support/cupy_on_host)."""
    (folder / "ids").mkdir()
    library = folder / "planted" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    path = (SUPPORT / "cupy_on_host", SUPPORT, folder / "planted")
    store = {"CUPY_ON_HOST_GPUS": str(gpus), "CUPY_ON_HOST_STORE": str(folder / "ids")}
    return shown(folder, hgx(gpus), *path, **store)


@cache
def asked_python() -> subprocess.Popen[str]:
    """Answers the questions of all tests of this process, each in a fork."""
    process = subprocess.Popen(
        [sys.executable, str(SUPPORT / "asked_python.py")], stdin=-1, stdout=-1, text=True
    )
    atexit.register(process.wait)
    atexit.register(process.kill)
    return process


def ask(
    folder: Path,
    machine: str | None,
    code: str,
    *imports: str,
    old: bool = False,
    libs: Iterable[str] = LIBRARIES,
    fresh: bool = False,
    **env: str,
) -> Any:
    """What `code`, an expression, is worth as JSON in a process on that machine; None is a machine
    without driver.

    `imports` are statements before it, `libs` the libraries that the machine has. `fresh`: a
    process that has imported and loaded nothing.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("CUDA_")
    } | env
    files: list[Path] = []
    if machine is not None:
        (folder / "machine").write_text(machine)
        (folder / "lib").mkdir(exist_ok=True)
        files = [Path(shutil.copy(str(libraries(old) / name), folder / "lib")) for name in libs]
        environment |= {
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "SHOWN_GPUS": str(folder / "machine"),
        } | env
    program = "\n".join(["import json, os, sys", *imports, f"print(json.dumps({code}))"])
    if fresh or "PYTHONPATH" in env:  # which is read at the start
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=CHILD_S,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    python = asked_python()
    assert python.stdin is not None and python.stdout is not None
    question = {
        "program": program,
        "environment": environment,
        "libraries": [str(file) for file in files],
    }
    python.stdin.write(json.dumps(question) + "\n")
    python.stdin.flush()
    if not select.select([python.stdout], [], [], CHILD_S)[0]:
        raise TimeoutError(f"no answer within {CHILD_S} s to {code}")
    answer = json.loads(python.stdout.readline())
    assert not isinstance(answer, dict) or "failed" not in answer, answer["failed"]
    return answer
