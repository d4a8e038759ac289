"""All launchers. A file of a folder `launcher`, in conf or a feature, names the class of each, and
the class says all that other code has to know of it (`Launcher` in protocols.py), so nothing else
names one."""

from __future__ import annotations

import importlib
import re
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

from .annexes import parts
from .protocols import Launcher, RankVariables


def target_of(text: str) -> Any:
    """The class that a YAML file of commbench names, without composing it; None where it names
    none."""
    found = re.search(r"^_target_: (\S+)\.(\w+)", text, re.MULTILINE)
    return None if found is None else getattr(importlib.import_module(found[1]), found[2])


@cache
def launchers() -> tuple[Launcher, ...]:
    """An instance for each file that names a class, by precedence."""
    folders = (files(package) / "launcher" for package in ("commbench.conf", *parts()))
    found = (file for folder in folders if folder.is_dir() for file in folder.iterdir())
    texts = (file.read_text() for file in found if file.name.endswith(".yaml"))
    built = (kind() for kind in map(target_of, texts) if kind is not None)
    return tuple(sorted(built, key=lambda launcher: launcher.precedence))


def launcher_named(name: str) -> Launcher:
    return next(launcher for launcher in launchers() if launcher.name == name)


@cache
def rank_variables() -> RankVariables:
    """What they say of variables, together."""
    said = (launcher.variables for launcher in launchers())
    return RankVariables(*(tuple(chain(*each)) for each in zip(*said, strict=True)))


def usual_programs() -> list[str]:
    """What users call to start ranks, one program for each launcher that has any."""
    return [launcher.programs[0] for launcher in launchers() if launcher.programs]
