"""All keys of the configuration in one table: how each is read, what it may hold, whether it makes
an axis of a run.

conf/config.yaml has their defaults and meanings. Below the table: message sizes (presets, lists,
and ranges such as 8..8GiB, 8..1MiB*4 and 8..max), and which code a configuration may load. A file
can't run arbitrary code: targets come from commbench or from a module in `allow=[...]`, and
settings that may make a process load other code are accepted from the command line only.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commbench.core.case import Benchmark
from commbench.core.errors import ConfigError
from commbench.core.payload import dtype
from commbench.core.protocols import Backend, Launcher, Writer
from commbench.core.states import STAGES
from commbench.core.suggestions import did_you_mean
from commbench.core.terminal import first_line
from commbench.core.units import parse_bytes
from commbench.core.variables import INT64_MAX, TABLE, Device, TimerName, Variable

PRESETS = {  # elements: 40 B to 40 MB, and to 4 GB, for float32
    "decades": tuple(10**k for k in range(1, 8)),
    "mlbench": tuple(10**k for k in range(1, 10)),
}
OCTAVES_BYTES = tuple(2**k for k in range(3, 25))  # 8 B to 16 MiB
SIZE_RANGE = re.compile(
    r"(?P<first>[^.*]+(?:\.\d[^.*]*)?)\.\.(?P<last>[^*]+)(?:\*(?P<factor>[^*]*))?"
)
TO_MEMORY = "max"  # the end of a range: what the memory of the nodes allows, which the plan knows
MAX_RANGE_BYTES = 2**45  # of a range to TO_MEMORY
EXAMPLES = (
    "a list like '[8,1KiB,4MB]' or a range like 8..8GiB (times 2), '8..1MiB*4' (times 4), 8..max"
    " (quotes for zsh)"
)
OWN_TARGETS = {  # group -> prefixes of the targets that need no permission
    "backend": ("commbench.backends.",),
    "benchmark": ("commbench.benchmarks.", "commbench.replay."),
    "writer": ("commbench.results.", "commbench.report."),
    "launcher": ("commbench.runtime.launchers.",),
    "timing": ("commbench.config.settings.Timing",),
}
CONTRACTS = {"backend": Backend, "benchmark": Benchmark, "writer": Writer, "launcher": Launcher}
# environment variables that a file may set: values of communication libraries and of threads. Any
# other may name a library, a program or a file that is written
FILE_VARIABLES = re.compile(
    r"NCCL_(?:ALGO|PROTO|NTHREADS|BUFFSIZE|NSOCKS_PERTHREAD|CROSS_NIC|NET|LAUNCH_MODE|DEBUG_SUBSYS)"
    r"|NCCL_(?:DEBUG|DMABUF_ENABLE|GDRCOPY_ENABLE|GDRCOPY_SYNC_ENABLE|MULTI_RANK_GPU_ENABLE)"
    r"|NCCL_(?:MIN|MAX|P2P|SHM|SOCKET|IB|NET_GDR|NET_SHARED|COLLNET|NVLS|CUMEM|PXN|MNNVL|LL)_\w+"
    r"|TORCH_NCCL_(?:AVOID_RECORD_STREAMS|BLOCKING_WAIT|CUDA_EVENT_CACHE|HIGH_PRIORITY|NAN_CHECK)"
    r"|CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING)"
    r"|GLOO_SOCKET_IFNAME"
    r"|OMPI_MCA_(?:pml|btl|mtl|osc|coll)(?:_\w+)?"
    r"|MPIR_CVAR_(?:CH4|COLL|\w+_INTRA_ALGORITHM|\w+_INTER_ALGORITHM)(?:_\w+)?"
    r"|UCX_(?:TLS|NET_DEVICES|PROTO_ENABLE|LOG_LEVEL|MEMTYPE_CACHE|\w+_THRESH|MAX_\w+_RAILS)"
    r"|UCX_(?:RNDV|RC|UD|DC|IB|TCP|CUDA_COPY|CUDA_IPC)_\w+"
    r"|FI_(?:PROVIDER|LOG_LEVEL)|FI_(?:TCP|VERBS|EFA|CXI|OFI_RXM|PSM3|MR)_\w+"
    r"|(?:OMP|MKL|OPENBLAS)_NUM_THREADS|OMP_(?:PROC_BIND|PLACES)|KMP_(?:AFFINITY|BLOCKTIME)"
)
NAMES_A_FILE = re.compile("PATH|FILE|DIR|LIB|MODULE|PLUGIN|DUMP|COMMAND", re.IGNORECASE)
NO_STAGE = "none"
# key -> what setting it does; a library by its name is harmless, one by its path is not
RESTRICTED = {
    "allow": "permits foreign modules",
    "backend.library": "loads a library",
    "launcher.agent": "starts programs",
    "launcher.options": "starts programs",
}


class Kind(Enum):
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
    kind: Kind
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
    kinds = {"flag": Kind.FLAG, "integer": Kind.INTEGER, "text": Kind.TEXT}
    kind = Kind.CHOICE if each.choices else kinds[each.kind]
    return Key(each.name, kind, each.choices or (), each.least, each.most, each.axis)


TIMERS: dict[Device, tuple[TimerName, ...]] = {  # the first one is `auto`
    "cpu": ("host",),
    "cuda": ("host_sync", "device_event", "graph", "throughput"),
}
EVENT_TIMED = TIMERS["cuda"][1:]  # by events of the GPU
KEY_TABLE = (
    Key("backend", Kind.GROUP),
    Key("benchmarks", Kind.GROUP, group="benchmark", axis=True),
    Key("timing", Kind.GROUP),
    Key("launcher", Kind.GROUP),
    Key("writers", Kind.GROUP, group="writer", axis=True),
    Key("budget", Kind.MAPPING),
    Key("layout", Kind.OTHER, axis=True),
    Key("dtype", Kind.OTHER, axis=True),
    Key("sizes", Kind.OTHER, axis=True),
    Key("sizes_per", Kind.CHOICE, ("message", "rank")),
    Key("pairs", Kind.OTHER, axis=True),
    Key("search", Kind.MAPPING),
    Key("nodes", Kind.CHOICE, ("all", "each", "doubling")),
    *(_of_variable(each) for each in TABLE if each.choices is not None),
    Key("env", Kind.MAPPING),
    Key("limit", Kind.OTHER, axis=True),
    Key("trial", Kind.INTEGER),
    Key("expect", Kind.OTHER, axis=True),
    Key("expect_by", Kind.CHOICE, ("median", "interval")),
    Key("expect_missing", Kind.CHOICE, ("fail", "allow")),
    Key("preflight", Kind.CHOICE, ("strict", "warn", "off")),
    Key("on_error", Kind.CHOICE, ("continue", "stop")),
    Key("profile", Kind.TEXT),
    Key("plan", Kind.FLAG),
    Key("verbose", Kind.FLAG),
    Key("label", Kind.TEXT),
    Key("stage", Kind.CHOICE, (NO_STAGE, *STAGES)),
    Key("seed", Kind.INTEGER),
    Key("output", Kind.TEXT),
    Key("allow", Kind.OTHER),
    Key("scale", Kind.OTHER),
    Key("part", Kind.OTHER),
    Key("parts", Kind.OTHER),
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
TEXT_FIELDS = ("str", "str | None", "tuple[str, ...]")  # of the dataclasses of groups
GROUPS = {key.override: key for key in KEY_TABLE if key.kind is Kind.GROUP}


def is_text(name: str) -> bool:
    """Whether the key of an override takes text, which is kept as it was typed."""
    return name in INNER_TEXTS or (name in OVERRIDES and OVERRIDES[name].kind is Kind.TEXT)


def check_text(name: str, value: Any) -> None:
    """Raises ConfigError for a number or truth value in a file, whose spelling YAML has not
    kept."""
    if isinstance(value, bool | int | float):
        raise ConfigError(
            f"{name}={value} is a {type(value).__name__} in its file, not a text; quote it there:"
            f" {name.rpartition('.')[2]}: 'TEXT'"
        )


def list_refusal(key: str, values: list[Any]) -> ConfigError:
    """The error for a list where a run takes one value."""
    joined = ",".join(str(value) for value in values)
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
        self._allow = (
            tuple(str(name) for name in allow) if isinstance(allow, list) else (str(allow),)
        )

    def read(self, name: str) -> Any:
        """The value of a key, checked; a tuple for an axis. Raises ConfigError."""
        key = KEYS[name]
        value = self.raw.get(name)
        if key.kind is Kind.GROUP and key.axis:
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
        if key.kind is Kind.GROUP:
            return construct(value, name, self._allow)
        if key.kind is Kind.MAPPING:
            if value is not None and not isinstance(value, dict):
                raise ConfigError(f"{name}={value} is not a mapping; write {name}.NAME=VALUE")
            return {str(entry): content for entry, content in (value or {}).items()}
        return _checked(key, value)


def _checked(key: Key, value: Any) -> Any:
    """One value of a key that is neither a group nor a mapping; None for a flag that is `auto`.
    Raises ConfigError."""
    match key.kind:
        case Kind.TEXT:
            if isinstance(value, dict):
                raise ConfigError(f"{key.name}={value} is not a text")
            check_text(key.name, value)
            return None if value is None else str(value)
        case Kind.FLAG:
            if key.axis and value == "auto":
                return None
            if not isinstance(value, bool):
                also = ", nor auto" if key.axis else ""
                raise ConfigError(f"{key.name}={value} is neither true nor false{also}")
        case Kind.INTEGER:
            if type(value) is not int or not key.minimum <= value <= key.maximum:
                largest = "2^63-1" if key.maximum == INT64_MAX else key.maximum
                raise ConfigError(
                    f"{key.name}={value} is not an integer from {key.minimum} to {largest}"
                )
        case Kind.CHOICE:
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
    **dict.fromkeys(
        ("iters", "iterations", "reps", "repetitions"), "timing=fixed timing.repetitions=N"
    ),
    **dict.fromkeys(("warmup", "warmup_iters", "skip"), "timing.warmup_repetitions=N"),
    **dict.fromkeys(("launches", "runs", "repeats"), "timing.launches=N"),
    **dict.fromkeys(("launch", "repeat"), "trial=N"),
    **dict.fromkeys(("ranks", "n", "np", "nproc", "ngpus", "gpus", "world_size"), "layout=1xN"),
    **dict.fromkeys(("size", "bytes", "message_bytes", "minbytes", "maxbytes"), "sizes=[8,1MiB]"),
    **dict.fromkeys(("duration", "time", "seconds"), "timing=soak timing.duration_s=N"),
    "parallel": "streams=N",
    **dict.fromkeys(("op", "operation", "collective", "test"), "benchmark=NAME"),
    **dict.fromkeys(("datatype", "type"), "dtype=NAME"),
    **dict.fromkeys(("format", "as"), "writer=NAME"),
}


def unknown_key(name: str) -> str:
    """The line for a key that does not exist, with the nearest ones that do."""
    head, _, tail = name.partition(".")
    if tail and head in OVERRIDES:
        return (
            f"unknown key {name}; {head} has no {tail}: see its file in conf/{head}, or commbench"
            " --keys"
        )
    meant = OTHER_KEYS.get(name.lower())
    hint = f"did you mean {meant}? " if meant else did_you_mean(name, OVERRIDES)
    return f"unknown key {name}; {hint}all keys: commbench --keys"


def sizes_bytes(spec: Any, name: str) -> tuple[int, ...]:
    """Message sizes in bytes for elements of that dtype; raises ConfigError."""
    itemsize = dtype(name).itemsize
    if isinstance(spec, str) and spec in PRESETS:
        return tuple(count * itemsize for count in PRESETS[spec])
    if spec == "octaves":
        return tuple(size for size in OCTAVES_BYTES if size % itemsize == 0)
    if isinstance(spec, str) and not spec[:1].isdigit():
        raise ConfigError(
            f"sizes={spec} is unknown; allowed: {', '.join(PRESETS)}, octaves, {EXAMPLES}"
        )
    values = spec if isinstance(spec, list) else [spec]
    if not values:
        raise ConfigError("sizes=[] measures nothing; give at least one size")
    sizes: list[int] = []
    for value in values:
        if isinstance(value, str) and (span := SIZE_RANGE.fullmatch(value)) is not None:
            sizes += _range_bytes(span, itemsize)
            continue
        size = _parsed_size(value)
        if not 1 <= size <= INT64_MAX:
            raise ConfigError(
                f"sizes=[{value}] is not from 1 to 2^63-1 bytes; write e.g. 64, 1KiB or 4MB"
            )
        if size % itemsize:
            near = max(itemsize, size // itemsize * itemsize)
            each = f"{name} elements ({itemsize} B each)"
            raise ConfigError(
                f"sizes=[{value}] is not a whole number of {each}; write e.g. [{near}]"
            )
        sizes.append(size)
    return tuple(dict.fromkeys(sizes))


def _range_bytes(span: re.Match[str], itemsize: int) -> list[int]:
    """The sizes of a range that are whole numbers of elements."""
    first = _parsed_size(span["first"])
    last_text = span["last"].strip()
    last = MAX_RANGE_BYTES if last_text == TO_MEMORY else _parsed_size(last_text)
    factor = span["factor"] and span["factor"].strip()
    if factor is not None and not (factor.isdecimal() and 2 <= int(factor) <= 1024):
        raise ConfigError(
            f"sizes={span[0]}: the factor {factor!r} is not a whole number from 2 to 1024"
        )
    if not 1 <= first <= last <= INT64_MAX:
        raise ConfigError(f"sizes={span[0]} does not rise from at least 1 B; write e.g. 8..1MiB")
    sizes = [first]
    while sizes[-1] * int(factor or 2) <= last:
        sizes.append(sizes[-1] * int(factor or 2))
    if last_text != TO_MEMORY and sizes[-1] != last:  # an end that the steps miss
        sizes.append(last)
    whole = [size for size in sizes if size % itemsize == 0]
    if not whole:
        raise ConfigError(
            f"sizes={span[0]} has no whole number of elements of {itemsize} B each; begin at"
            f" {itemsize}"
        )
    return whole


def _parsed_size(value: Any) -> int:
    try:
        return parse_bytes(value)
    except ConfigError as error:
        raise ConfigError(f"sizes: {error}") from error


# ---------------------------------------------------------------- what only the command line may
# set


def why_restricted(key: str, value: Any) -> str | None:
    """Why only the command line may set this key to this value; None if a file may, too."""
    if key.startswith("env."):
        name = key.removeprefix("env.")
        is_value = FILE_VARIABLES.fullmatch(name) and not NAMES_A_FILE.search(name)
        return None if is_value else "may load code or write files"
    is_name = key == "backend.library" and "/" not in str(value)
    return RESTRICTED.get(key) if value and not is_name else None


def check_file_settings(config: DictConfig, given: Collection[str]) -> None:
    """Raises ConfigError for a restricted setting of a composed configuration whose key the user
    has not `given`.

    Raises OmegaConfBaseException for one that refers to a key that does not exist.
    """
    settings = {key: OmegaConf.select(config, key) for key in RESTRICTED}
    env = config.get("env")
    settings |= {f"env.{name!s}": None for name in env} if isinstance(env, DictConfig) else {}
    for key, value in settings.items():
        why = why_restricted(key, value)
        if why is not None and key not in given:
            seen = key if value is None else f"{key}={value}"
            raise ConfigError(
                f"a file sets {seen}, which {why}; give {key}=... on the command line"
            )


def check_file_override(key: str, override: str) -> None:
    """The same for an override in an experiment's file, which looks as if the user had given it.

    Whole mappings, and all of Hydra's and the launcher's own keys, are refused.
    """
    whole = key in ("allow", "env") or key.startswith(("hydra", "launcher."))
    if whole or why_restricted(key, override.partition("=")[2]) is not None:
        raise ConfigError(
            f"an experiment's file sets {override}; what loads code is given on the command line"
            " only"
        )


# ---------------------------------------------------------------- targets


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
