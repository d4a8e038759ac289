"""Parts of commbench that can be deleted. They are imported by name, so nothing depends on them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import ConfigError


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
        package = module.rpartition(".")[0]
        raise ConfigError(f"{user} needs {package}, which is not there")
    return found
