"""What each part that can be deleted adds, by the modules of its folder that the core asks for."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from loops import for_each
from places import PACKAGES

from commbench.core.annexes import annex, parts
from commbench.measure import measuring
from commbench.measure.measuring import Measuring
from commbench.report import reporting, showing
from commbench.report.reporting import Reporting
from commbench.report.showing import Showing
from commbench.results.row import KINDS

ASKING: tuple[tuple[ModuleType, Any], ...] = (
    (measuring, Measuring),
    (reporting, Reporting),
    (showing, Showing),
)
MODULES = [f"{part}.{kind.__name__.lower()}" for part in parts() for _, kind in ASKING]
THERE = [name for name in MODULES if annex(name) is not None]
FILES = [
    file
    for package in PACKAGES
    for file in sorted(package.rglob("*.py"))
    if file.relative_to(package).parts[0] not in ("measure", "report")
]


@for_each("name", THERE)
def test_a_module_that_the_core_asks_for_has_what_it_adds(name: str) -> None:
    word = name.rpartition(".")[2]
    (kind,) = (kind for _, kind in ASKING if kind.__name__.lower() == word)
    assert isinstance(getattr(annex(name), word.upper()), kind)


@for_each("file", FILES)
def test_nothing_is_added_in_a_module_that_the_core_does_not_ask_for(file: Path) -> None:
    source = file.read_text()
    for _, kind in ASKING:
        name = kind.__name__
        if re.search(rf"\b{name}\(", source):
            assert file.stem == name.lower()
            assert re.search(rf"^{name.upper()} = {name}\(", source, flags=re.M)


@pytest.mark.parametrize(("asking", "kind"), ASKING)
def test_a_module_without_it_fails_with_both_names(
    asking: Any, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"commbench.features.mine.{kind.__name__.lower()}"
    monkeypatch.setattr(asking, "part_modules", lambda word: [ModuleType(name)])
    said = f"module '{name}' has no attribute '{kind.__name__.upper()}'"
    with pytest.raises(AttributeError, match=said):
        asking.features.__wrapped__()


@pytest.mark.parametrize(("asking", "kind"), ASKING)
def test_a_member_that_it_does_not_have_fails_with_its_name(asking: Any, kind: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colums'"):
        kind(colums=())


def test_columns_of_features_are_columns_of_rows() -> None:
    found = [name for feature in measuring.features() for name in feature.columns]
    read = [name for feature in showing.features() for name in feature.changing]
    assert found and read and {*found, *read} <= KINDS.keys()
    assert len(set(found)) == len(found), "two features say how the launches of a column are one"


def test_a_finding_whose_launches_can_not_be_one_fails_with_its_name() -> None:
    with pytest.raises(TypeError, match="error_ulp_mean was found, but is not in"):
        measuring.with_merge({"error_ulp_max": 0.5, "error_ulp_mean": 0.1})
