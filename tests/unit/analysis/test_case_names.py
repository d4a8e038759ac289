"""Names that tell cases apart, whatever variable it is in which they differ."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.analysis.case_names import case_names, differing
from commbench.core.variables import TABLE

PLANTED: dict[str, Any] = {"text": "x", "integer": 7, "flag": True, "map": (("a", "b"),)}
NAMED_OTHERWISE = ("benchmark", "backend")  # a benchmark begins the name; rows are of one backend


def row(**more: Any) -> dict[str, Any]:
    return case_row(benchmark="replay", layout="1x2", message_bytes=1024) | more


@pytest.mark.parametrize("variable", [each for each in TABLE if each.shown], ids=lambda v: v.name)
def test_rows_that_differ_in_one_variable_have_two_names(variable: Any) -> None:
    planted = "2x2" if variable.name == "layout" else PLANTED[variable.kind]
    rows = [row(), row(**{variable.name: planted})]
    assert differing(rows) == [variable.name]
    if variable.name not in NAMED_OTHERWISE:
        assert len(set(case_names(rows))) == 2


def test_names_have_only_what_tells_rows_apart() -> None:
    cases = [("none", None), ("sleep", None), ("sleep", "1:2ms")]
    rows = [row(gaps=gaps, late=late, dtype="int8") for gaps, late in cases]
    assert case_names(rows) == [
        "replay 1x2 1 KiB",
        "replay 1x2 1 KiB, gaps sleep",
        "replay 1x2 1 KiB, gaps sleep late 1:2ms",
    ]
    assert case_names([row(root=0), row(root=1)])[1] == "replay 1x2 1 KiB, root 1"


def test_a_variable_that_applies_to_one_benchmark_only_tells_nothing_apart() -> None:
    rows = [row(benchmark="all_reduce", root=0), row(benchmark="barrier", root=None)]
    assert "root" not in differing(rows)
