"""The stand-in for NVIDIA's driver library, compiled where there is a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "driver.c"


def library_folder(folder: Path) -> Path:
    """A folder for LD_LIBRARY_PATH with libcuda.so.1 in it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return folder
