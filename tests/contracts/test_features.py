"""What each part that can be deleted adds, by the modules of its folder that the core asks for."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from loops import for_each
from places import PACKAGES

from commbench.backends.opening import Opening
from commbench.config.settings import Configuring
from commbench.core import annexes
from commbench.core.annexes import annex, parts, registered
from commbench.measure import measuring
from commbench.measure.measuring import Measuring
from commbench.report.reporting import Reporting
from commbench.report.showing import Showing
from commbench.results.row import KINDS

KINDS_OF_PARTS: tuple[Any, ...] = (Configuring, Measuring, Opening, Reporting, Showing)
MODULES = [f"{part}.{kind.__name__.lower()}" for part in parts() for kind in KINDS_OF_PARTS]
THERE = [name for name in MODULES if annex(name) is not None]
FILES = [
    file
    for package in PACKAGES
    for file in sorted(package.rglob("*.py"))
    if file.relative_to(package).parts[0] not in ("measure", "report")
    and file.name != "openers.py"  # asks for an Opening, and has those of the core's backends
]


@for_each("name", THERE)
def test_a_module_that_the_core_asks_for_has_what_it_adds(name: str) -> None:
    word = name.rpartition(".")[2]
    (kind,) = (kind for kind in KINDS_OF_PARTS if kind.__name__.lower() == word)
    assert isinstance(getattr(annex(name), word.upper()), kind)


@for_each("file", FILES)
def test_nothing_is_added_in_a_module_that_the_core_does_not_ask_for(file: Path) -> None:
    source = file.read_text()
    for name in (kind.__name__ for kind in KINDS_OF_PARTS):
        if re.search(rf"(?<!class )\b{name}\(", source):
            assert file.stem == name.lower()
            assert re.search(rf"^{name.upper()} = {name}\(", source, flags=re.M)


def test_every_part_is_asked_for_each_kind() -> None:
    """A kind that no part has is none: it would be the core's own."""
    for kind in KINDS_OF_PARTS:
        word = kind.__name__.lower()
        found = [getattr(annex(name), word.upper()) for name in THERE if name.endswith(f".{word}")]
        assert found and [*registered(kind)] == found


def test_a_module_without_it_fails_with_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Adding:
        """A kind that no module has."""

    name = "commbench.features.mine.adding"
    monkeypatch.setattr(annexes, "parts", lambda: ["commbench.features.mine"])
    monkeypatch.setattr(annexes, "annex", ModuleType)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'ADDING'"):
        registered(Adding)


@pytest.mark.parametrize("kind", KINDS_OF_PARTS)
def test_a_member_that_it_does_not_have_fails_with_its_name(kind: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colums'"):
        kind(colums=())


def test_columns_of_features_are_columns_of_rows() -> None:
    found = [name for feature in registered(Measuring) for name in feature.columns]
    read = [name for feature in registered(Showing) for name in feature.changing]
    assert found and read and {*found, *read} <= KINDS.keys()
    assert len(set(found)) == len(found), "two features say how the launches of a column are one"


def test_a_finding_whose_launches_can_not_be_one_fails_with_its_name() -> None:
    with pytest.raises(TypeError, match="error_ulp_mean was found, but is not in"):
        measuring.with_merge({"error_ulp_max": 0.5, "error_ulp_mean": 0.1})
