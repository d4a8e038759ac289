"""Which code a configuration may bring in: objects named by `_target_`, and settings that load or start something.

A configuration file can't run arbitrary code: targets lie inside of commbench or in a module of `allow=[...]`, and what
makes a process load other code is accepted from the command line only.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commbench.core.case import Benchmark
from commbench.core.errors import ConfigError
from commbench.core.protocols import Backend, Launcher, Writer
from commbench.core.terminal import first_line

OWN_TARGETS = {  # group -> prefix of the targets that need no permission
    "backend": "commbench.backends.",
    "benchmark": "commbench.benchmarks.",
    "writer": "commbench.writers.",
    "launcher": "commbench.launchers.",
    "timing": "commbench.config.settings.Timing",
    "budget": "commbench.config.settings.Budget",
}
CONTRACTS = {"backend": Backend, "benchmark": Benchmark, "writer": Writer, "launcher": Launcher}
# names of environment variables that make a process load or run something else
LOADING = re.compile("^LD_|PATH|PRELOAD|PYTHON|PLUGIN|MODULE|LIBMPI|LIBRARY|COMMAND|AGENT|LAUNCH|SHELL|EXEC|ENV$")
ENV_SET = "hydra.job.env_set"


# ---------------------------------------------------------------- what only the command line may set


def why_restricted(key: str, value: Any) -> str | None:
    """Why only the command line may set this key to this value; None if a file may, too."""
    if key == "allow" and value:
        return "permits foreign modules"
    if key.startswith("env.") and LOADING.search(key.removeprefix("env.").upper()):
        return "can load code"
    if key == "backend.library" and isinstance(value, str) and "/" in value:
        return "loads a library"
    if key in ("launcher.agent", "launcher.options") and value:
        return "starts programs"
    if key == ENV_SET and value:
        return "exports variables; use env.NAME=TEXT instead"
    return None


def check_file_settings(settings: Iterable[tuple[str, Any]], given: Collection[str]) -> None:
    """Raises ConfigError for a restricted setting of a composed configuration whose key the user has not `given`."""
    for key, value in settings:
        why = why_restricted(key, value)
        by_user = key in given or (key.startswith("env.") and "env" in given)
        if why is not None and not by_user:
            seen = key if value is None else f"{key}={value}"
            raise ConfigError(f"a file sets {seen}, which {why}; give {key}=... on the command line")


def check_experiment_overrides(keys: Sequence[str], overrides: Sequence[str]) -> None:
    """The same for the overrides in an experiment's file, which look as if the user had given them.

    Whole mappings, and all of Hydra's and the launcher's own keys, are refused.
    """
    for key, override in zip(keys, overrides, strict=True):
        whole = key in ("allow", "env") or key.startswith(("hydra", "launcher."))
        if whole or why_restricted(key, override.partition("=")[2]) is not None:
            raise ConfigError(
                f"an experiment's file sets {override}; what loads code is given on the command line only"
            )


# ---------------------------------------------------------------- targets


def construct(node: Any, where: str, allow: tuple[str, ...]) -> Any:
    """Build a node's `_target_` with typed fields; raises ConfigError for foreign modules, unknown keys, wrong types.

    `where` begins with the key or group (`backend`, `writer console`), whose protocol the result must fulfil.
    """
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise ConfigError(f"{where}={node} has no _target_; choose a file of its group, e.g. {where}=NAME")
    target, group = node["_target_"], where.partition(" ")[0]
    kind = _dataclass_of(target, where, group, allow)
    try:
        typed = OmegaConf.structured(kind)
        _make_writable(typed)
        given = {key: value for key, value in node.items() if key != "_target_"}
        built = OmegaConf.to_object(OmegaConf.merge(typed, OmegaConf.create(given)))
    except (OmegaConfBaseException, OverflowError, TypeError, AttributeError, ValueError) as error:
        known = ", ".join(field.name for field in fields(kind)) or "none"
        key = ".".join(filter(None, (where, getattr(error, "full_key", None))))
        raise ConfigError(f"{key}: {first_line(error)}; its keys: {known}") from error
    protocol = CONTRACTS.get(group)
    required = set() if protocol is None else {*vars(protocol), *getattr(protocol, "__annotations__", ())}
    missing = sorted(name for name in required if not name.startswith("_") and not hasattr(built, name))
    if missing:
        raise ConfigError(f"{where}: _target_ {target} is not a {group}: it has no {', '.join(missing)}")
    return built


def _dataclass_of(target: str, where: str, group: str, allow: tuple[str, ...]) -> type:
    """The dataclass that `_target_` names; nothing is imported that is neither ours nor allowed."""
    module, _, name = target.rpartition(".")
    own = (OWN_TARGETS[group],) if group in OWN_TARGETS else tuple(OWN_TARGETS.values())
    if module not in allow and not target.startswith(own):
        raise ConfigError(f"{where}: _target_ {target} is outside {own[0]}*; permit it with allow=[{module}]")
    try:
        kind = getattr(importlib.import_module(module), name)
        fields(kind)
        if not isinstance(kind, type) or (module not in allow and kind.__module__ != module):
            raise TypeError(f"{name} is not defined in {module}")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: _target_ {target} is not a dataclass that can be imported: {first_line(error)}"
        ) from error
    return kind


def _make_writable(node: Any) -> None:
    """At every depth: OmegaConf makes read-only nodes of frozen dataclasses."""
    OmegaConf.set_readonly(node, False)
    for name in node:
        if not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig):
            _make_writable(node[name])
