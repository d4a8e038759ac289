"""commbench runs from its source tree where it is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from places import TOOLS

sys.path.insert(0, str(TOOLS / "gpu"))

from machine import PLUGINS, Machine, importable
from steps import STEPS


@pytest.fixture
def uninstalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with the source tree and all installed packages but commbench's own; for
    `python -S`."""
    monkeypatch.chdir(tmp_path)  # `python -m` would import commbench from here, without conf/
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(folder).iterdir():
            if "commbench" not in entry.name and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
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


@pytest.mark.parametrize("name", ["doctor", "nccl_one_gpu", "shared_nccl_messages"])
def test_the_checks_of_gpus_find_all_they_need(uninstalled: dict[str, str], name: str) -> None:
    """The command lines of `make gpu-check`, which installs nothing."""
    known = {check.name: check for step in STEPS.values() for check in step.checks(Machine(1))}
    more = {"PYTHONPATH": f"{uninstalled['PYTHONPATH']}{os.pathsep}{PLUGINS}"}
    done = python(
        uninstalled | more,
        "-m",
        "commbench",
        *known[name].words,
        *([] if name == "doctor" else ["plan=true"]),
    )
    assert done.returncode == 0, done.stderr
    assert "nccl  " in done.stdout if name == "doctor" else "nothing was started" in done.stdout
