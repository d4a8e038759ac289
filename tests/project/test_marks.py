"""What pytest runs where no marks are asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

def test_quick(): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.serial
def test_serial(): pass
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "ran", "says_the_rest"),
    [
        (["-k", "test"], ["quick"], True),
        (["-m", "not long"], ["quick", "serial"], False),
        (["tests/test_marked.py::test_long"], ["long"], False),
    ],
)
def test_long_and_serial_tests_run_where_they_are_asked_for(
    tmp_path: Path, words: list[str], ran: list[str], says_the_rest: bool
) -> None:
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    shutil.copytree(ROOT / "tests" / "support", tmp_path / "tests" / "support")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "tests" / "test_marked.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *words]
    text = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert [name for name in ("quick", "long", "serial") if f"test_{name} PASSED" in text] == ran
    assert ("without the tests marked serial" in text) is says_the_rest
