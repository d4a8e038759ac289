"""Parts of commbench that can be left out. They are imported by name, and nothing depends on
them."""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module
from typing import Any, TypeVar

from .errors import ConfigError

FEATURES = "commbench.features"
SOAKS = f"{FEATURES}.streams"  # measures soaks, and shows them
REPLAY = "commbench_replay"  # a distribution of its own
INSTALL_REPLAY = "pip install . ./replay in a clone of commbench"
ANNEXES = ("commbench.cluster", REPLAY)
Kind = TypeVar("Kind")


def annex(module: str) -> Any | None:
    """The module; None where its annex is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise


def needed_annex(module: str, user: str) -> Any:
    """The module, which `user` needs; raises ConfigError where its annex is not there, or a feature
    that the annex needs."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not missing.startswith((FEATURES, *ANNEXES)):
            raise
        install = f": {INSTALL_REPLAY}" if missing == REPLAY else ""
        raise ConfigError(f"{user} needs {missing}, which is not there{install}") from error


def parts() -> list[str]:
    """The annexes, and the folders of `features`, that are there."""
    folder = annex(FEATURES)
    found = () if folder is None else pkgutil.iter_modules(folder.__path__)
    return [*filter(annex, ANNEXES), *(f"{FEATURES}.{each.name}" for each in found)]


def registered(kind: type[Kind]) -> tuple[Kind, ...]:
    """What the parts that are there add of a kind: of `Measuring`, the object MEASURING of each
    module `measuring`."""
    return _registered(kind.__name__)


@functools.cache  # a plan asks for each of its cases
def _registered(name: str) -> tuple[Any, ...]:
    modules = (annex(f"{part}.{name.lower()}") for part in parts())
    return tuple(getattr(module, name.upper()) for module in modules if module is not None)
