"""Where torch comes from, with planted folders of packages."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commbench.hardware import torch_install
from commbench.hardware.torch_install import other_torch, place_of, torch_facts


def plant(packages: Path, version: str) -> Path:
    """A torch of this version; returns its folder."""
    (packages / f"torch-{version}.dist-info").mkdir(parents=True)
    folder = packages / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError")
    return folder


@pytest.fixture(autouse=True)
def _no_memory() -> Iterator[None]:
    other_torch.cache_clear()
    yield
    other_torch.cache_clear()


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's Python; the one that runs is a venv beside it, with torch 2.13.0."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "usr"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    own = plant(tmp_path / "venv/lib/python3.11/site-packages", "2.13.0")
    monkeypatch.setattr(torch_install, "torch_folder", lambda: own)
    return tmp_path / "usr"


@pytest.mark.parametrize(
    "packages",
    [
        "lib/python3.11/site-packages",
        "lib64/python3.9/site-packages",
        "lib/python3/dist-packages",
        "local/lib/python3.12/dist-packages",
    ],
)
def test_another_torch_of_the_systems_python_is_named(base: Path, packages: str) -> None:
    plant(base / packages, "2.11.0a0+nv25.1")
    assert other_torch((base,)) == f"torch 2.11.0a0+nv25.1 in {base / packages}"


def test_the_same_torch_and_no_torch_are_no_other(base: Path) -> None:
    assert other_torch((base,)) is None
    plant(base / "lib/python3/dist-packages", "2.13.0")
    other_torch.cache_clear()
    assert other_torch((base,)) is None


def test_a_venv_that_uses_the_systems_torch_has_no_other(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = plant(base / "lib/python3/dist-packages", "2.11.0")
    plant(base / "local/lib/python3.11/dist-packages", "2.9.0")
    monkeypatch.setattr(torch_install, "torch_folder", lambda: system)
    assert other_torch((base,)) is None
    assert place_of(system) == f"the Python in {base}"


def test_without_a_venv_there_is_no_other(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(base / "lib/python3/dist-packages", "2.11.0")
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert other_torch((base,)) is None


def test_each_place_has_its_name(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = torch_install.torch_folder()
    assert folder is not None and place_of(folder) == f"the venv {sys.prefix}"
    monkeypatch.setenv("PYTHONPATH", f"/none:{folder.parent}")
    assert place_of(folder) == f"PYTHONPATH ({folder.parent})"
    assert place_of(Path("/src/torch")) == "/src"
    monkeypatch.setattr(sys, "prefix", str(base))
    assert place_of(base / "lib/python3/dist-packages/torch") == f"the Python in {base}"


def test_what_torch_was_built_for_is_read_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch.version

    assert torch_facts(tmp_path)["versions.torch_git_commit"] == torch.version.git_version
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(
        sys, "meta_path", [finder for finder in sys.meta_path if "PathFinder" in repr(finder)]
    )
    assert not any(torch_facts(tmp_path).values())
    folder = plant(tmp_path, "2.9.0+rocm6.4")
    (folder / "version.py").write_text("git_version, cuda, hip = 'abc', None, '6.4.4'")
    importlib.invalidate_caches()
    facts = torch_facts(tmp_path)
    assert facts["versions.torch_git_commit"] == "abc"
    assert facts["versions.torch_hip"] == "6.4.4" and "versions.torch_cuda" not in facts
    assert facts["versions.torch_from"] == str(tmp_path)
