"""The table of flags: everything that measure/ can set is in it, and in the documentation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import commbench
from commbench.results.flags import FLAGS, advice_of, different_bindings

PACKAGE = Path(commbench.__file__).parent
DOCUMENT = PACKAGE.parent / "docs" / "report.md"


def constants(nodes: list[ast.expr | None]) -> list[str]:
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_the_table_has_every_flag_that_a_measurement_can_set() -> None:
    """A dictionary or list in measure/ that holds one flag holds only flags."""
    raised: set[str] = set()
    for file in (PACKAGE / "measure").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = constants(node.keys) if isinstance(node, ast.Dict) else []
            names += constants(list(node.elts)) if isinstance(node, ast.List) else []
            if set(names) & set(FLAGS):
                raised |= set(names)
    assert raised == set(FLAGS)


@pytest.mark.skipif(not DOCUMENT.exists(), reason="the documents are not installed")
def test_the_documentation_has_every_flag() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(FLAGS)


@pytest.mark.parametrize(
    ("flag", "setting", "words"),
    [
        ("noisy", {"timing": "rigorous"}, "timing=rigorous"),
        ("drifting", {"timing": "soak"}, "timing=soak"),
        ("multimodal", {"bind": "core"}, "bind=core"),
    ],
)
def test_a_setting_that_is_in_effect_is_not_recommended(
    flag: str, setting: dict[str, str], words: str
) -> None:
    other = {"timing": "quick", "bind": "auto"}
    assert words in advice_of(flag, [other])
    assert words in advice_of(flag, [setting, other])
    advice = advice_of(flag, [setting])
    assert advice and words not in advice and words not in FLAGS[flag].advice_in_effect


def run_of(backend: str, **provenance: object) -> dict[str, object]:
    return {"backend": {"name": backend}, "provenance": provenance}


def test_backends_whose_ranks_were_bound_differently_are_named() -> None:
    loose = run_of("gloo", nodes=[{"run.bind": "none"}])
    bound = run_of("mpi", differences={"run.bind": {"0": "core", "1": "core"}})
    text = different_bindings([bound, loose])
    assert text.startswith("gloo: ranks not bound; mpi: ranks bound to cores: ")
    assert different_bindings([loose, loose]) == ""
    assert different_bindings([loose, run_of("simulated"), {}]) == "", "nothing is known of them"
