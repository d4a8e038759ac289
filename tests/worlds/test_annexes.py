"""Both annexes can be deleted: the main job, show, report and compare run without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uninstalled import packages_without_commbench

import commbench

ANNEXES = ("cluster", "replay", "imports")
FEW = ("timing=fixed", "timing.repetitions=5", "sizes=[8]", "layout=1x2")


@pytest.fixture(scope="module")
def without_annexes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a copy of the package that lacks them."""
    folder = tmp_path_factory.mktemp("copy")
    packages = packages_without_commbench(folder / "packages")
    copy = folder / "tree" / "commbench"
    ignored = shutil.ignore_patterns("__pycache__", *ANNEXES)
    shutil.copytree(Path(commbench.__file__).parent, copy, ignore=ignored)
    return {**os.environ, "PYTHONPATH": f"{copy.parent}{os.pathsep}{packages}"}


def run(env: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # -S: an editable installation would find the annexes in the source tree
    command = [sys.executable, "-S", "-m", "commbench", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


def test_the_main_job_and_its_readers_need_no_annex(
    without_annexes: dict[str, str], tmp_path: Path
) -> None:
    for backend in ("gloo", "simulated"):
        done = run(without_annexes, tmp_path, f"backend={backend}", *FEW, f"output={backend}")
        assert done.returncode == 0, done.stderr
    assert run(without_annexes, tmp_path, "show", "gloo").returncode == 0
    assert "gloo" in run(without_annexes, tmp_path, "report", "gloo", "--html", "a.html").stdout
    compared = run(without_annexes, tmp_path, "compare", "gloo", "gloo")
    assert compared.returncode == 0, compared.stderr


def test_what_an_annex_would_do_is_refused_in_one_line(
    without_annexes: dict[str, str], tmp_path: Path
) -> None:
    words = ("backend=simulated", "benchmark=p2p_latency", "pairs=search", "layout=8x1")
    words += ("schedule=rounds",)
    searching = run(without_annexes, tmp_path, *words)
    assert searching.returncode == 2
    assert searching.stderr.count("\n") == 1 and "commbench.cluster" in searching.stderr
    assert "commbench.cluster" in run(without_annexes, tmp_path, "locate").stderr
    importing = run(without_annexes, tmp_path, "import", "a.log")
    assert importing.returncode == 2 and importing.stderr.count("\n") == 1
    assert "commbench import needs commbench.features.imports" in importing.stderr
