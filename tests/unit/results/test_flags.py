"""The table of flags: everything that measure/ can set is in it, and in the documentation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from sample_cases import case_row
from size_rows import frame_of_rows

import commbench
from commbench.results.flags import FLAGS, UNBOUND, binding_text, is_bound, shared_flags
from commbench.results.load import rows_of_frame

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


def test_all_cases_have_a_flag_only_if_each_has_it() -> None:
    rows = [case_row(warnings=["skewed", "overhead"]), case_row(warnings=["overhead"])]
    assert shared_flags(rows) == {"overhead"}
    assert shared_flags([*rows, case_row()]) == shared_flags([]) == frozenset()


def test_flags_that_a_user_gives_are_one_text_or_null() -> None:
    frame = frame_of_rows([case_row(case_id=name, status="failed") for name in "abc"])
    texts = frame.assign(warnings=["skewed overhead", "overhead", None])
    assert [row.warnings for row in rows_of_frame(texts)] == [
        ("skewed", "overhead"),
        ("overhead",),
        (),
    ]


@pytest.mark.parametrize(
    ("provenance", "text"),
    [
        ({"differences": {"run.bind": {"core 0": [0], "core 1": [1]}}}, "ranks bound to cores"),
        ({"differences": {"host.cpu_affinity": {}}}, "ranks bound by the launcher"),
        ({"nodes": [{"run.bind": "core 0"}, {"run.bind": "core 0"}]}, "ranks bound to cores"),
        ({"nodes": [{"run.bind": "none"}]}, UNBOUND),
        (None, ""),
    ],
)
def test_a_run_says_whether_its_ranks_were_bound(provenance: object, text: str) -> None:
    run = {"provenance": provenance}
    assert binding_text(run) == text and is_bound(run) == ("bound to" in text or "by the" in text)
