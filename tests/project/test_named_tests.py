"""Tests that docs/trust.md and docs/testing.md name as proof exist."""

from __future__ import annotations

import ast
import re

import pytest
from places import ROOT

TRUST = (ROOT / "docs" / "trust.md").read_text()


def named_tests(text: str) -> list[tuple[str, str | None]]:
    """Files below tests/ and functions in them: `unit/x/test_y.py::test_z[1]`, or `test_y.py` in any folder."""
    return [
        (file, name or None)
        for file, name in re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(\w+)[^`]*)?`", text)
    ]


@pytest.mark.parametrize("page", ["trust.md", "testing.md"])
def test_tests_that_are_named_as_proof_exist(page: str) -> None:
    missing = []
    named = named_tests((ROOT / "docs" / page).read_text())
    for file, name in named:
        paths = [path for path in ROOT.glob(f"tests/**/{file}") if "/" in file or path.name == file]
        trees = [ast.parse(path.read_text()) for path in paths]
        functions = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        if not paths or (name is not None and name not in functions):
            missing.append(f"{file}::{name}")
    assert len(named) > 12 and missing == []


def test_each_of_the_twelve_rules_has_one_test() -> None:
    rules = re.findall(r"^\| (\d+) .*$", TRUST, flags=re.M)
    proofs = [named_tests(line) for line in re.findall(r"^\| \d+ .*$", TRUST, flags=re.M)]
    assert rules == [str(number) for number in range(1, 13)]
    assert [len(tests) for tests in proofs] == [1] * 12
    assert all(name is not None for ((_, name),) in proofs)
