"""commbench runs from its source tree where it is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import TOOLS
from uninstalled import packages_without_commbench

sys.path.insert(0, str(TOOLS / "gpu"))

from machine import importable


@pytest.fixture
def uninstalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with the source tree and all installed packages but commbench's own; for
    `python -S`."""
    monkeypatch.chdir(tmp_path)  # `python -m` would import commbench from here, without conf/
    packages = packages_without_commbench(tmp_path / "packages")
    return os.environ | {"PYTHONPATH": f"{importable(tmp_path / 'tree')}{os.pathsep}{packages}"}


def python(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_the_version_is_source(uninstalled: dict[str, str]) -> None:
    lookup = python(uninstalled, "-c", "import importlib.metadata as m; m.version('commbench')")
    assert "PackageNotFoundError" in lookup.stderr, "it is not installed here"
    done = python(uninstalled, "-m", "commbench", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "commbench source\n", "")


@pytest.mark.parametrize(
    ("words", "text"),
    [(["doctor"], "nccl  "), (["backend=nccl", "layout=1x1", "plan=true"], "nothing was started")],
)
def test_commands_of_the_gpu_check_find_all_they_need(
    uninstalled: dict[str, str], words: list[str], text: str
) -> None:
    done = python(uninstalled, "-m", "commbench", *words)
    assert text in done.stdout and done.stderr == ""
