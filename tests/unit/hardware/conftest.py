"""Fake file trees, so that /proc and /sys of other machines can be read here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from places import HARDWARE_TEXTS

Plant = Callable[..., Path]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """plant({"proc/stat": "cpu ..."}, links={"proc/self/ns/pid": "pid:[1]"}) makes these files;
    gives their root."""

    def make(files: dict[str, str], links: dict[str, str] | None = None) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, target in (links or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        return tmp_path

    return make


@pytest.fixture
def saved() -> Callable[[str], str]:
    """A text of tests/data/hardware by its name."""
    return lambda name: (HARDWARE_TEXTS / name).read_text()
