"""Typed access to a plain configuration; every refusal says what was seen, what is allowed and what to do."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commbench.core.case import Benchmark
from commbench.core.errors import ConfigError
from commbench.core.protocols import Backend, Launcher, Writer

INT64_MAX = 2**63 - 1
OWN = {  # key or group -> where a `_target_` of it may lie without being named in `allow`
    "backend": "commbench.backends.",
    "benchmark": "commbench.benchmarks.",
    "writer": "commbench.writers.",
    "launcher": "commbench.launchers.",
    "timing": "commbench.config.settings.Timing",
    "budget": "commbench.config.settings.Budget",
}
CONTRACTS = {"backend": Backend, "benchmark": Benchmark, "writer": Writer, "launcher": Launcher}
KEYS = (
    "backend", "benchmarks", "timing", "launcher", "writers", "budget", "layout", "dtype", "sizes", "pairs", "schedule",
    "window", "streams", "reduction", "root", "in_place", "engine", "timing_mode", "sync", "cache", "device", "staging",
    "cuda_ipc", "interface", "env", "launch", "bind", "expect", "preflight", "on_error", "plan", "label", "seed",
    "output", "allow", "scale", "part", "parts",
)  # fmt: skip
GROUPS = {"benchmarks": "benchmark", "writers": "writer"}  # keys whose group has another name
FRESH_WORLD = ("backend", "device", "cuda_ipc", "env", "interface", "launcher", "launch")


class Keys:
    """Typed access to the plain configuration; every refusal says what was seen and what is allowed."""

    def __init__(self, raw: dict[str, Any]) -> None:
        for key in raw:
            if key in GROUPS.values():
                raise ConfigError(f"key {key} is a group; its files begin with the line: # @package {key}s.NAME")
            if key not in KEYS:
                raise ConfigError(unknown_key(key))
        self.raw = raw
        allowed = raw.get("allow") or []
        self._allow = tuple(str(name) for name in allowed) if isinstance(allowed, list) else (str(allowed),)

    def listed(self, key: str) -> list[Any]:
        value = self.raw.get(key)
        values = value if isinstance(value, list) else [value]
        if not values:
            raise ConfigError(f"{key}=[] measures nothing; give at least one value")
        return values

    def single(self, key: str) -> Any:
        value = self.raw.get(key)
        if isinstance(value, list):
            values = ",".join(str(one) for one in value)
            raise ConfigError(f"{key} takes one value a run; for several fresh worlds: commbench -m {key}={values}")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.single(key)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{key}={value} is not a mapping; write {key}.NAME=VALUE")
        return {str(name): one for name, one in (value or {}).items()}

    def text(self, key: str) -> str | None:
        value = self.single(key)
        if isinstance(value, dict):
            raise ConfigError(f"{key}={value} is not a text")
        return None if value is None else str(value)

    def integers(self, key: str, minimum: int, maximum: int = INT64_MAX) -> list[int]:
        return [_integer(key, value, minimum, maximum) for value in self.listed(key)]

    def integer(self, key: str, minimum: int) -> int:
        return _integer(key, self.single(key), minimum)

    def flags(self, key: str) -> list[bool | None]:
        """Booleans, or auto (None)."""
        return [None if value == "auto" else _flag(key, value, ", nor auto") for value in self.listed(key)]

    def flag(self, key: str) -> bool:
        return _flag(key, self.single(key))

    def choices(self, key: str, allowed: tuple[str, ...]) -> list[str]:
        return [_choice(key, value, allowed) for value in self.listed(key)]

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        return _choice(key, self.single(key), allowed)

    def switch(self, key: str, allowed: tuple[str, ...]) -> str:
        """A choice in which YAML has read on and off as booleans."""
        value = self.single(key)
        return _choice(key, {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value, allowed)

    def built(self, key: str) -> Any:
        return construct(self.single(key), key, self._allow)

    def built_all(self, key: str, group: str) -> tuple[Any, ...]:
        nodes = self.raw.get(key)
        if not isinstance(nodes, dict) or not nodes:
            raise ConfigError(f"{group}=[] leaves nothing to do; name at least one {group}")
        return tuple(construct(node, f"{group} {name}", self._allow) for name, node in nodes.items())


def construct(node: Any, where: str, allow: tuple[str, ...]) -> Any:
    """Build a node's `_target_` with typed fields; raises ConfigError for foreign modules, keys and types.

    `where` begins with the key or group (`backend`, `writer console`), whose contract the result must meet.
    """
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise ConfigError(f"{where}={node} has no _target_; choose a file of its group, e.g. {where}=NAME")
    kind = _kind(node["_target_"], where, allow)
    given = {key: value for key, value in node.items() if key != "_target_"}
    try:
        typed = OmegaConf.structured(kind)
        _unlock(typed)
        built = OmegaConf.to_object(OmegaConf.merge(typed, OmegaConf.create(given)))
    except (OmegaConfBaseException, OverflowError, TypeError, AttributeError, ValueError) as error:
        known = ", ".join(field.name for field in fields(kind)) or "none"
        key = ".".join(filter(None, (where, getattr(error, "full_key", None))))
        raise ConfigError(f"{key}: {first_line(error)}; its keys: {known}") from error
    _check_contract(built, node["_target_"], where)
    return built


def _kind(target: str, where: str, allow: tuple[str, ...]) -> type:
    """The dataclass that `_target_` names; nothing is imported that is neither ours nor allowed."""
    module, _, name = target.rpartition(".")
    group = where.partition(" ")[0]
    own = (OWN[group],) if group in OWN else tuple(OWN.values())
    if module not in allow and not target.startswith(own):
        raise ConfigError(f"{where}: _target_ {target} is outside {own[0]}*; permit it with allow=[{module}]")
    try:
        kind = getattr(importlib.import_module(module), name)
        fields(kind)
        if not isinstance(kind, type) or (module not in allow and kind.__module__ != module):
            raise TypeError(f"{name} is not defined in {module}")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: _target_ {target} is no dataclass that can be imported: {first_line(error)}"
        ) from error
    return kind


def _check_contract(built: Any, target: str, where: str) -> None:
    """Raises ConfigError for an object that lacks what its part of a run is asked for."""
    group = where.partition(" ")[0]
    contract = CONTRACTS.get(group, object)
    wanted = {*vars(contract), *getattr(contract, "__annotations__", ())} if group in CONTRACTS else set()
    lacking = sorted(name for name in wanted if not name.startswith("_") and not hasattr(built, name))
    if lacking:
        raise ConfigError(f"{where}: _target_ {target} is no {group}: it has no {', '.join(lacking)}")


def _unlock(node: Any) -> None:
    """Frozen dataclasses make read-only nodes, at every depth."""
    OmegaConf.set_readonly(node, False)
    for name in node:
        if not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig):
            _unlock(node[name])


def unknown_key(key: str) -> str:
    """The line for a key that does not exist, with the nearest one that does."""
    names = [GROUPS.get(name, name) for name in KEYS]
    head, _, tail = key.partition(".")
    if tail and head in names:
        return f"unknown key {key}; {head} has no {tail}: see its file in conf/{head}, or commbench --keys"
    near = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key {key}; {hint}keys: {', '.join(names)}"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _integer(key: str, value: Any, minimum: int, maximum: int = INT64_MAX) -> int:
    if type(value) is not int or not minimum <= value <= maximum:
        largest = "2^63-1" if maximum == INT64_MAX else maximum
        raise ConfigError(f"{key}={value} is not an integer from {minimum} to {largest}")
    return value


def _flag(key: str, value: Any, more: str = "") -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value} is neither true nor false{more}")
    return value


def _choice(key: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"{key}={value} is unknown; allowed: {', '.join(allowed)}")
    return str(value)
