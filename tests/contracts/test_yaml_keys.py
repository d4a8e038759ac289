"""A YAML file has a key for each field of its dataclass: what it lacks can't be set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from loops import for_each
from places import BACKENDS, LAUNCHERS, ROOT

from commbench.core.launchers import target_of

SOAK = {"duration_s", "interval_s"}  # other timings have no end in seconds
PASSES = {"launches", "pass_s"}  # of a case with several visits
LEFT_OUT = {
    "timing/default": SOAK,
    "timing/quick": SOAK,
    "timing/rigorous": SOAK,
    "timing/fixed": SOAK | PASSES,
    "timing/soak": PASSES,
    "writer/console": {"tables"},  # a sweep sets it
    "writer/osu": {"strict"},  # writer=osu_strict
}
FILES = {
    f"{file.parent.name}/{file.stem}": file
    for file in (
        *BACKENDS.values(),
        *LAUNCHERS.values(),
        *ROOT.glob("commbench/**/timing/*.yaml"),
        *ROOT.glob("commbench/**/writer/*.yaml"),
    )
}


def missing(kind: Any, given: Mapping[str, Any]) -> Iterator[str]:
    """The fields without a key, those of nested dataclasses as OUTER.INNER."""
    types = get_type_hints(kind)
    for each in fields(kind):
        if each.init and each.name not in given:
            yield each.name
        elif each.init and is_dataclass(types[each.name]):
            yield from (
                f"{each.name}.{name}" for name in missing(types[each.name], given[each.name])
            )


@for_each("name", FILES)
def test_each_field_has_a_key(name: str) -> None:
    text = Path(FILES[name]).read_text()
    kind = target_of(text)
    if kind is not None:
        assert {*missing(kind, yaml.safe_load(text))} == LEFT_OUT.get(name, set())


@dataclass(frozen=True)
class Inner:
    rate: float = 1.0
    size: int = 1


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    seed: int = 0


def test_a_field_without_a_key_is_found() -> None:
    assert [*missing(Outer, {"inner": {"rate": 2.0}})] == ["inner.size", "seed"]
    assert [*missing(Outer, {"inner": {"rate": 2.0, "size": 1}, "seed": 1})] == []
