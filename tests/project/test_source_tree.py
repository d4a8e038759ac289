"""commbench runs from its source tree where it is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from uninstalled import packages_without_commbench

RUN = ("backend=gloo", "benchmark=all_reduce", "sizes=[8]", "timing=fixed", "timing.repetitions=2")


@pytest.fixture
def uninstalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with all installed packages but commbench's own, in a clone without what an
    editable installation leaves there; for `python -S`."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("commbench", "conf", "setup.cfg"):
        (clone / name).symlink_to(ROOT / name)
    monkeypatch.chdir(clone)
    return os.environ | {"PYTHONPATH": str(packages_without_commbench(tmp_path / "packages"))}


def python(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=100, check=False
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


@pytest.mark.long
@pytest.mark.parametrize("start", [(), ("torch.distributed.run", "--nproc-per-node=2", "-m")])
def test_ranks_find_it_too(
    uninstalled: dict[str, str], start: tuple[str, ...], tmp_path: Path
) -> None:
    """Those of the command, and those of a launcher. -S is not handed on: sitecustomize."""
    (tmp_path / "packages" / "sitecustomize.py").write_text(
        "import sys; sys.path[:] = [path for path in sys.path if 'site-packages' not in path]"
    )
    done = python(uninstalled, "-m", *start, "commbench", *RUN, f"output={tmp_path / 'results'}")
    assert done.returncode == 0, done.stderr
    assert "results: " in done.stdout


@pytest.mark.parametrize("missing", ["psutil", "hydra"])
def test_a_package_that_it_needs_is_named_with_the_way_to_install_it(
    uninstalled: dict[str, str], missing: str, tmp_path: Path
) -> None:
    """One that is imported at once, and one that is later."""
    (tmp_path / "packages" / missing).unlink()
    done = python(uninstalled, "-m", "commbench", "backend=simulated")
    install = f"{sys.executable} -m pip install {Path.cwd()}"
    assert done.returncode == 2
    assert done.stderr == f"commbench: {missing} is not installed: {install}\n"


@pytest.mark.long
def test_an_editable_installation_is_found_from_above_the_clone(tmp_path: Path) -> None:
    """There, the clone's own folder has the package's name."""
    clone = tmp_path / "commbench"
    ignored = shutil.ignore_patterns(".*", "tests", "docs", "notebooks", "__pycache__")
    shutil.copytree(ROOT, clone, symlinks=True, ignore=ignored)
    site = tmp_path / "site"
    words = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site))
    pip = [sys.executable, "-m", "pip", *words, "--editable", str(clone)]
    subprocess.run(pip, check=True, capture_output=True)
    packages = packages_without_commbench(tmp_path / "packages")
    program = f"import site, sys; site.addsitedir({str(site)!r}); import commbench; commbench.run"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
