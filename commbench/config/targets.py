"""Which code a configuration may load: dataclasses of commbench, or of a module in allow=[...].

Their fields are read with their types.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commbench.core.case import Benchmark
from commbench.core.errors import ConfigError
from commbench.core.protocols import Backend, Launcher
from commbench.core.terminal import first_line
from commbench.results.writer import Writer

OWN_TARGETS = {  # group -> prefixes of the targets that need no permission
    "backend": ("commbench.backends.", "commbench.features."),
    "benchmark": ("commbench.benchmarks.", "commbench.features.", "commbench_replay."),
    "writer": ("commbench.results.", "commbench.report.", "commbench.features."),
    "launcher": ("commbench.runtime.launchers.", "commbench.features."),
    "timing": ("commbench.config.settings.Timing",),
}
CONTRACTS = {"backend": Backend, "benchmark": Benchmark, "writer": Writer, "launcher": Launcher}
TEXT_FIELDS = ("str", "str | None", "tuple[str, ...]")  # of the dataclasses of groups


def construct(node: Any, where: str, allow: tuple[str, ...]) -> Any:
    """Build a node's `_target_` with typed fields; raises ConfigError for foreign modules, unknown
    keys, wrong types.

    `where` begins with the group (`backend`, `writer console`), whose protocol the result must
    implement.
    """
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise ConfigError(
            f"{where}={node} has no _target_; choose a file of its group, e.g. {where}=NAME"
        )
    target = node["_target_"]
    group = where.partition(" ")[0]
    given = {key: value for key, value in node.items() if key != "_target_"}
    built = typed(_dataclass_of(target, where, group, allow), given, where)
    protocol = CONTRACTS.get(group)
    required = (
        set() if protocol is None else {*vars(protocol), *getattr(protocol, "__annotations__", ())}
    )
    missing = sorted(
        name for name in required if not name.startswith("_") and not hasattr(built, name)
    )
    if missing:
        raise ConfigError(
            f"{where}: _target_ {target} is not a {group}: it has no {', '.join(missing)}"
        )
    return built


def typed(kind: type, given: Mapping[str, Any], where: str) -> Any:
    """A dataclass with these fields; raises ConfigError for unknown keys and wrong types."""
    try:
        for name in (field.name for field in fields(kind) if field.type in TEXT_FIELDS):
            value = given.get(name)
            for entry in value if isinstance(value, list) else [value]:
                check_text(f"{where}.{name}", entry)
        return OmegaConf.to_object(OmegaConf.merge(_typed_node(kind), given))
    except (OmegaConfBaseException, OverflowError, TypeError, AttributeError, ValueError) as error:
        known = ", ".join(field.name for field in fields(kind)) or "none"
        key = ".".join(filter(None, (where, getattr(error, "full_key", None))))
        raise ConfigError(f"{key}: {first_line(error)}; its keys: {known}") from error


def check_text(name: str, value: Any) -> None:
    """Raises ConfigError for a number or truth value in a file, whose spelling YAML has not
    kept."""
    if isinstance(value, bool | int | float):
        raise ConfigError(
            f"{name}={value} is a {type(value).__name__} in its file, not a text; quote it there:"
            f" {name.rpartition('.')[2]}: 'TEXT'"
        )


def _dataclass_of(target: str, where: str, group: str, allow: tuple[str, ...]) -> type:
    """The dataclass that `_target_` names; nothing is imported that is neither ours nor allowed."""
    module, _, name = target.rpartition(".")
    own = OWN_TARGETS[group]
    if module not in allow and not target.startswith(own):
        raise ConfigError(
            f"{where}: _target_ {target} is outside {own[0]}*; permit it with allow=[{module}]"
        )
    try:
        kind = getattr(importlib.import_module(module), name)
        fields(kind)
        if not isinstance(kind, type) or (module not in allow and kind.__module__ != module):
            raise TypeError(f"{name} is not defined in {module}")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: _target_ {target} is not a dataclass that can be imported:"
            f" {first_line(error)}"
        ) from error
    return kind


@cache
def _typed_node(kind: type) -> Any:
    """An empty node with the fields of a dataclass. To make it takes OmegaConf ms, and each job of
    a sweep needs it."""
    node = OmegaConf.structured(kind)
    _make_writable(node)
    return node


def _make_writable(node: Any) -> None:
    """Make the node writable at every depth: OmegaConf makes read-only nodes of frozen
    dataclasses."""
    OmegaConf.set_readonly(node, False)
    for name in node:
        if not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig):
            _make_writable(node[name])
