from __future__ import annotations

import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

from commbench.hardware import versions


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "commbench").mkdir()
    (tmp_path / "commbench/a.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_installed_packages():
    facts = versions.collect()
    assert "versions.error" not in facts
    assert facts["versions.numpy"] == metadata.version("numpy")
    assert facts["versions.python"].startswith("3.")
    assert facts["versions.python_implementation"] == "CPython"


def test_first_installed_distribution_counts():
    assert versions.installed_version(("no-such-package-here", "numpy")) == metadata.version("numpy")
    assert versions.installed_version(("no-such-package-here",)) is None


def test_torch_is_asked_only_when_it_is_there(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert versions.torch_facts(tmp_path) == {}
    about = types.SimpleNamespace(git_version="abc", cuda="12.8", hip=None)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(version=about))
    assert versions.torch_facts(tmp_path) == {"versions.torch_git_commit": "abc", "versions.torch_cuda": "12.8"}


def test_a_clean_and_a_changed_checkout(checkout):
    clean = versions.git_facts(checkout, checkout)
    assert len(clean["versions.git_commit"]) == 40
    assert clean["versions.git_dirty"] is False
    (checkout / "results").write_text("not code")
    assert versions.git_facts(checkout, checkout)["versions.git_dirty"] is False
    (checkout / "commbench/new.py").write_text("2\n")
    assert versions.git_facts(checkout, checkout)["versions.git_dirty"] is True


def test_a_git_hook_does_not_point_elsewhere(checkout, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert versions.git_facts(checkout, checkout)["versions.git_commit"]


def test_no_commit_yet(tmp_path):
    git(tmp_path, "init", "-q")
    assert not any(versions.git_facts(tmp_path, tmp_path).values())


def test_not_a_checkout_or_no_git(tmp_path, checkout, monkeypatch):
    assert versions.git_facts(tmp_path, tmp_path / "elsewhere") == {}
    monkeypatch.setenv("PATH", "/nowhere")
    assert not any(versions.git_facts(checkout, checkout).values())
