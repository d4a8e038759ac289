"""Tests that docs/trust.md and docs/testing.md name as proof exist."""

from __future__ import annotations

import re

import pytest
from places import ROOT

TRUST = (ROOT / "docs" / "trust.md").read_text()


def named_tests(text: str) -> list[tuple[str, str | None]]:
    """Files below tests/ and functions in them: `unit/x/test_y.py::test_z[1]`, or `test_y.py` in
    any folder."""
    return [
        (file, name or None)
        for file, name in re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(\w+)[^`]*)?`", text)
    ]


@pytest.mark.parametrize("page", ["trust.md", "testing.md"])
def test_tests_that_are_named_as_proof_exist(page: str) -> None:
    missing = []
    named = named_tests((ROOT / "docs" / page).read_text())
    texts = {str(path): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for file, name in named:
        texts_of_file = [text for path, text in texts.items() if path.endswith(f"/{file}")]
        defined = any(re.search(rf"^ *def {name}\(", text, re.MULTILINE) for text in texts_of_file)
        if not texts_of_file or (name is not None and not defined):
            missing.append(f"{file}::{name}")
    assert len(named) > 12 and missing == []


def test_each_of_the_twelve_rules_has_one_test() -> None:
    rules = re.findall(r"^\| (\d+) .*$", TRUST, flags=re.M)
    proofs = [named_tests(line) for line in re.findall(r"^\| \d+ .*$", TRUST, flags=re.M)]
    assert rules == [str(number) for number in range(1, 13)]
    assert [len(tests) for tests in proofs] == [1] * 12
    assert all(name is not None for ((_, name),) in proofs)
