"""Names that tell cases apart, whatever variable it is in which they differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_cases import case_row

from commbench.analysis.case_names import (
    SharedItems,
    case_names,
    differing,
    label_notes,
    telling,
)
from commbench.core.variables import SIZES, TABLE
from commbench.results.row import Row

PLANTED: dict[str, Any] = {"text": "x", "integer": 7, "flag": True, "map": (("a", "b"),)}
NAMED_OTHERWISE = ("benchmark", "backend")  # a benchmark begins the name; rows are of one backend


def row(**more: Any) -> Row:
    return case_row(**{"benchmark": "replay", "layout": "1x2", "message_bytes": 1024} | more)


@pytest.mark.parametrize(
    "variable", [each for each in TABLE if each.name not in SIZES], ids=lambda v: v.name
)
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


def test_what_a_backend_or_a_layout_brings_along_differs_where_one_has_several() -> None:
    rows = [
        row(backend=name, library=f"{name} 1", layout=layout, hosts=layout)
        for name, layout in (("gloo", "1x2"), ("mpi", "1x4"))
    ]
    assert differing(rows) == ["backend", "layout"]
    assert differing([*rows, replace(rows[0], library="gloo 2", hosts="other")]) == [
        "backend",
        "layout",
        "library",
        "hosts",
    ]


def test_a_label_stands_for_the_settings_that_it_brings_along() -> None:
    rows = [
        row(label=label, env=env, root=root)
        for label, env, root in (("a", {}, 0), ("b", {"LINKS": "36"}, 1))
    ]
    assert telling(rows) == ["root", "label"], "titles show the root"
    assert label_notes(rows) == ["label b: LINKS=36"]
    both = [*rows, replace(rows[1], env=(("LINKS", "4"),))]
    assert telling(both) == ["root", "env", "label"]
    assert "env" in telling([*rows, row(env={"LINKS": "4"})]), "a row has no label"


def test_an_environment_is_reduced_to_what_not_all_rows_of_a_backend_have() -> None:
    rows = [row(backend="mpi", env={"PML": "ob1", "LINKS": links}) for links in ("1", "36")]
    shared = SharedItems.of([*rows, row(backend="gloo", env={})])
    reduced = [shared.taken_from(each) for each in (*rows, row(backend="gloo", env={}))]
    assert [dict(each.env) for each in reduced] == [{"LINKS": "1"}, {"LINKS": "36"}, {}]
    assert shared.notes == ["mpi, all cases: env PML=ob1"]
    assert case_names(reduced[:2])[0] == "replay 1x2 1 KiB, LINKS=1"


def test_a_variable_that_applies_to_one_benchmark_only_tells_nothing_apart() -> None:
    rows = [row(benchmark="all_reduce", root=0), row(benchmark="barrier", root=None)]
    assert "root" not in differing(rows)
