"""Parts of commbench that can be deleted. They are imported by name, so nothing depends on them."""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module
from typing import Any

from .errors import ConfigError

ANNEXES = ("commbench.cluster", "commbench.replay")
FEATURES = "commbench.features"


def annex(module: str) -> Any | None:
    """The module; None where its annex is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise


def needed_annex(module: str, user: str) -> Any:
    """The module, which `user` needs; raises ConfigError where its annex is not there."""
    found = annex(module)
    if found is None:
        depth = 3 if module.startswith(FEATURES) else 2
        package = ".".join(module.split(".")[:depth])
        raise ConfigError(f"{user} needs {package}, which is not there")
    return found


def feature_packages() -> list[str]:
    """The folders of `features` that are there."""
    folder = annex(FEATURES)
    found = () if folder is None else pkgutil.iter_modules(folder.__path__)
    return [f"{FEATURES}.{each.name}" for each in found]


@functools.cache
def feature_modules(name: str) -> tuple[Any, ...]:
    """The modules of this name, of the features that are there and have one."""
    modules = (annex(f"{package}.{name}") for package in feature_packages())
    return tuple(module for module in modules if module is not None)
