"""All keys of the configuration in one table: how each is read, what it may hold, whether it makes
an axis of a run.

conf/config.yaml has their defaults and meanings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args

from commbench.core.errors import ConfigError
from commbench.core.states import STAGES
from commbench.core.suggestions import did_you_mean
from commbench.core.variables import INT64_MAX, TABLE, Device, TimerName, Variable

from .targets import check_text, construct

NO_STAGE = "none"
SizesPer = Literal["message", "rank"]
NodesChoice = Literal["all", "each", "doubling"]
ExpectBy = Literal["median", "interval"]
ExpectMissing = Literal["fail", "allow"]
Preflight = Literal["strict", "warn", "off"]
OnError = Literal["continue", "stop"]


class KeyKind(Enum):
    """How one value of a key is read."""

    GROUP = "a file of a group"
    MAPPING = "mapping"
    TEXT = "text"
    FLAG = "true or false; in an axis also auto"
    INTEGER = "integer"
    CHOICE = "one of the choices"
    OTHER = "a form of its own"


@dataclass(frozen=True)
class Key:
    """`axis`: a list of values makes an axis inside one run; other keys have one value per run.

    `group`: the folder in conf/ of a key with another name.
    """

    name: str
    kind: KeyKind
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = INT64_MAX
    axis: bool = False
    group: str | None = None

    @property
    def override(self) -> str:
        """Its name on the command line."""
        return self.group or self.name


def _of_variable(each: Variable) -> Key:
    """The key that chooses a variable's values."""
    kinds = {"flag": KeyKind.FLAG, "integer": KeyKind.INTEGER, "text": KeyKind.TEXT}
    kind = KeyKind.CHOICE if each.choices else kinds[each.kind]
    return Key(each.name, kind, each.choices, each.least, each.most, each.axis)


TIMERS: dict[Device, tuple[TimerName, ...]] = {  # the first one is `auto`
    "cpu": ("host",),
    "cuda": ("host_sync", "device_event", "graph", "throughput"),
}
KEY_TABLE = (
    Key("backend", KeyKind.GROUP),
    Key("benchmarks", KeyKind.GROUP, group="benchmark", axis=True),
    Key("timing", KeyKind.GROUP),
    Key("launcher", KeyKind.GROUP),
    Key("writers", KeyKind.GROUP, group="writer", axis=True),
    Key("budget", KeyKind.MAPPING),
    Key("layout", KeyKind.OTHER, axis=True),
    Key("dtype", KeyKind.OTHER, axis=True),
    Key("sizes", KeyKind.OTHER, axis=True),
    Key("sizes_per", KeyKind.CHOICE, get_args(SizesPer)),
    Key("pairs", KeyKind.OTHER, axis=True),
    Key("search", KeyKind.MAPPING),
    Key("nodes", KeyKind.CHOICE, get_args(NodesChoice)),
    *(_of_variable(each) for each in TABLE if each.key),
    Key("env", KeyKind.MAPPING),
    Key("limit", KeyKind.OTHER, axis=True),
    Key("trial", KeyKind.INTEGER),
    Key("expect", KeyKind.OTHER, axis=True),
    Key("expect_by", KeyKind.CHOICE, get_args(ExpectBy)),
    Key("expect_missing", KeyKind.CHOICE, get_args(ExpectMissing)),
    Key("preflight", KeyKind.CHOICE, get_args(Preflight)),
    Key("on_error", KeyKind.CHOICE, get_args(OnError)),
    Key("profile", KeyKind.TEXT),
    Key("plan", KeyKind.FLAG),
    Key("verbose", KeyKind.FLAG),
    Key("label", KeyKind.TEXT),
    Key("stage", KeyKind.CHOICE, (NO_STAGE, *STAGES)),
    Key("seed", KeyKind.INTEGER),
    Key("output", KeyKind.TEXT),
    Key("allow", KeyKind.OTHER),
    Key("scale", KeyKind.OTHER),
    Key("part", KeyKind.OTHER),
    Key("parts", KeyKind.OTHER),
)
KEYS = {key.name: key for key in KEY_TABLE}
OVERRIDES = {key.override: key for key in KEY_TABLE}
# keys inside of a group that are texts, or lists of them
INNER_TEXTS = (
    "backend.library",
    "launcher.hosts",
    "launcher.hostfile",
    "launcher.agent",
    "launcher.options",
)
GROUPS = {key.override: key for key in KEY_TABLE if key.kind is KeyKind.GROUP}


def is_text(name: str) -> bool:
    """Whether the key of an override takes text, which is kept as it was typed."""
    return name in INNER_TEXTS or (name in OVERRIDES and OVERRIDES[name].kind is KeyKind.TEXT)


def list_refusal(key: str, values: list[Any]) -> ConfigError:
    """The error for a list where a run takes one value."""
    joined = ",".join(map(str, values))
    return ConfigError(
        f"{key} takes one value per run; for a run of each: commbench -m {key}={joined}"
    )


class ConfigReader:
    """Reads a plain configuration by the table; every error says what was seen and what is
    allowed."""

    def __init__(self, raw: dict[str, Any]) -> None:
        for name in raw:
            if name not in KEYS and name in GROUPS:
                raise ConfigError(
                    f"key {name} is a group; its files begin with the line: # @package {name}s.NAME"
                )
            if name not in KEYS:
                raise ConfigError(unknown_key(name))
        self.raw = raw
        allow = raw.get("allow") or []
        self._allow = tuple(map(str, allow)) if isinstance(allow, list) else (str(allow),)

    def read(self, name: str) -> Any:
        """The value of a key, checked; a tuple for an axis. Raises ConfigError."""
        key = KEYS[name]
        value = self.raw.get(name)
        if key.kind is KeyKind.GROUP and key.axis:
            if isinstance(value, str):
                raise ConfigError(f"unknown key {name}; did you mean {key.override}={value}?")
            if not isinstance(value, dict) or not value:
                raise ConfigError(
                    f"{key.override}=[] leaves nothing to do; name at least one {key.override}"
                )
            return tuple(
                construct(node, f"{key.override} {file}", self._allow)
                for file, node in value.items()
            )
        if key.axis:
            if value == []:
                raise ConfigError(f"{name}=[] measures nothing; give at least one value")
            return tuple(
                _checked(key, entry) for entry in (value if isinstance(value, list) else [value])
            )
        if isinstance(value, list):
            raise list_refusal(name, value)
        if key.kind is KeyKind.GROUP:
            return construct(value, name, self._allow)
        if key.kind is KeyKind.MAPPING:
            if value is not None and not isinstance(value, dict):
                raise ConfigError(f"{name}={value} is not a mapping; write {name}.NAME=VALUE")
            return {str(entry): content for entry, content in (value or {}).items()}
        return _checked(key, value)


def _checked(key: Key, value: Any) -> Any:
    """One value of a key that is neither a group nor a mapping; None for a flag that is `auto`.
    Raises ConfigError."""
    match key.kind:
        case KeyKind.TEXT:
            if isinstance(value, dict):
                raise ConfigError(f"{key.name}={value} is not a text")
            check_text(key.name, value)
            return None if value is None else str(value)
        case KeyKind.FLAG:
            if key.axis and value == "auto":
                return None
            if not isinstance(value, bool):
                also = ", nor auto" if key.axis else ""
                raise ConfigError(f"{key.name}={value} is neither true nor false{also}")
        case KeyKind.INTEGER:
            if type(value) is not int or not key.minimum <= value <= key.maximum:
                largest = "2^63-1" if key.maximum == INT64_MAX else key.maximum
                raise ConfigError(
                    f"{key.name}={value} is not an integer from {key.minimum} to {largest}"
                )
        case KeyKind.CHOICE:
            # YAML reads on and off as booleans
            if isinstance(value, bool) and "off" in key.choices:
                value = "on" if value else "off"
            if value not in key.choices:
                hint = did_you_mean(str(value), key.choices)
                raise ConfigError(
                    f"{key.name}={value} is unknown; {hint}allowed: {', '.join(key.choices)}"
                )
            return str(value)
    return value


# keys of other tools -> ours
OTHER_KEYS = {
    other: ours
    for others, ours in (
        ("iters iterations reps repetitions", "timing=fixed timing.repetitions=N"),
        ("warmup warmup_iters skip", "timing.warmup_repetitions=N"),
        ("launches runs repeats", "timing.launches=N"),
        ("launch repeat", "trial=N"),
        ("ranks n np nproc ngpus gpus world_size", "layout=1xN"),
        ("size bytes message_bytes minbytes maxbytes", "sizes=[8,1MiB]"),
        ("duration time seconds", "timing=soak timing.duration_s=N"),
        ("parallel", "streams=N"),
        ("op operation collective test", "benchmark=NAME"),
        ("datatype type", "dtype=NAME"),
        ("format as", "writer=NAME"),
    )
    for other in others.split()
}


def unknown_key(name: str) -> str:
    """The line for a key that does not exist, with the nearest ones that do."""
    head, _, tail = name.partition(".")
    if tail and head in OVERRIDES:
        return f"unknown key {name}; {head} has no {tail}; its keys: commbench --keys"
    meant = OTHER_KEYS.get(name.lower())
    hint = f"did you mean {meant}? " if meant else did_you_mean(name, OVERRIDES)
    return f"unknown key {name}; {hint}all keys: commbench --keys"
