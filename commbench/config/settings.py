"""The checked configuration: code that gets `Settings` may rely on its types and bounds.

A `Job` is a configuration with the overrides that it comes from; a command sends its text to the
ranks that it starts.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from commbench.benchmarks.each_node import REFUSED_AXES
from commbench.core.annexes import FEATURES, SOAKS, needed_annex, registered
from commbench.core.case import Benchmark
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.payload import dtype
from commbench.core.protocols import Backend, Launcher
from commbench.core.secrets import masked
from commbench.core.states import Stage
from commbench.core.terminal import one_line
from commbench.core.variables import (
    BY_NAME,
    TABLE,
    Binding,
    Cache,
    Device,
    Ipc,
    Options,
    Schedule,
    Staging,
    Sync,
    Variable,
)
from commbench.hardware.network import check_interface, told_rates
from commbench.results.writer import Writer

from .expectations import EXPECT_NORMAL, KNOWN_VALUES, Expectation, expectations, with_bounds
from .keys import (
    KEY_TABLE,
    TIMERS,
    ConfigReader,
    ExpectBy,
    ExpectMissing,
    KeyKind,
    NodesChoice,
    OnError,
    Preflight,
    SizesPer,
    list_refusal,
)
from .sizes import TO_MEMORY, sizes_bytes
from .targets import check_text, typed

MAX_DURATION_S = 1e8  # three years: a clock, a deadline and a store's timeout can still hold it
MAX_TIMING_REPETITIONS = 10**12
MAX_VISITS = 1000
ABOVE_0 = math.ulp(0.0)
BELOW_1 = math.nextafter(1.0, 0.0)
TIMING_BOUNDS = {
    "target": (ABOVE_0, BELOW_1),
    "case_s": (ABOVE_0, MAX_DURATION_S),
    "z": (ABOVE_0, MAX_DURATION_S),
    "repetitions": (1, MAX_TIMING_REPETITIONS),
    "warmup_repetitions": (0, MAX_TIMING_REPETITIONS),
    "warmup_s": (0, MAX_DURATION_S),
    "duration_s": (ABOVE_0, MAX_DURATION_S),
    "interval_s": (1e-3, MAX_DURATION_S),
    "visits": (1, MAX_VISITS),
    "launches": (1, MAX_VISITS),
    "pass_s": (0, MAX_DURATION_S),
}
BUDGET_BOUNDS = {
    "case_s": (ABOVE_0, MAX_DURATION_S),
    "total_s": (ABOVE_0, MAX_DURATION_S),
    "memory_share": (ABOVE_0, 1),
    "restarts": (0, 1000),
    "late_s": (1, 86400),
    # a heartbeat is sent every 2 s
    "silence_s": (5, 86400),
}
SEARCH = "search"  # pairs=search
SEARCH_BOUNDS = {"slowdown": (0.01, 10.0)}
MAX_PAIRS = 10**6  # of all layouts and sizes together: each pair is a case
# keys whose values become settings unchanged
UNCHANGED = tuple(
    key.name
    for key in KEY_TABLE
    if key.kind in (KeyKind.CHOICE, KeyKind.INTEGER, KeyKind.FLAG)
    and not key.axis
    and key.name != "device"
)
Pairs = str | tuple[tuple[int, int], ...]
FULL = "full"  # scale=full


@dataclass(frozen=True)
class Timing:
    """When a case has been measured enough; `target` is the relative half-width of the confidence
    interval.

    A case is visited at least `visits` times in each of `launches` fresh worlds, which share
    `case_s`. Of a fixed number of repetitions and of a soak, `from_config` makes both 1.
    """

    name: str = "custom"
    target: float = 0.01
    case_s: float = 10.0
    z: float = 1.96
    repetitions: int | None = None  # a fixed number instead of a target
    warmup_repetitions: int = 10
    warmup_s: float = 0.05
    duration_s: float | None = None  # a soak: repeat for this long, and keep the time line
    interval_s: float = 0.1  # of a soak's time line
    visits: int = 6
    launches: int = 1
    pass_s: float = 0.6  # at least, between the starts of two passes

    def __post_init__(self) -> None:
        _check_bounds("timing", self, TIMING_BOUNDS)

    @property
    def is_soak(self) -> bool:
        return self.duration_s is not None


@dataclass(frozen=True)
class Budget:
    """Time and memory that a run may take; None means no bound."""

    case_s: float | None = None
    total_s: float | None = None
    memory_share: float = 0.5
    restarts: int = 2  # fresh worlds for what a broken one has left
    late_s: float = 60.0  # how much longer than expected a call or a meeting of the ranks may take
    silence_s: float = 8.0  # how long a rank may send no heartbeat

    def __post_init__(self) -> None:
        _check_bounds("budget", self, BUDGET_BOUNDS)


@dataclass(frozen=True)
class NodeSearch:
    """What `pairs=search` looks for: ranks that take longer than typical by at least `slowdown`
    (0.1 is 10 %), and slow switches. `switches` has the switch of each host."""

    slowdown: float = 0.10
    switches: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_bounds("search", self, SEARCH_BOUNDS)


def _check_bounds(group: str, settings: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raises ConfigError for a number outside of its bounds; null has none."""
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if value is not None and not least <= value <= most:
            low = "above 0" if least == ABOVE_0 else f"at least {least:g}"
            high = "below 1" if most == BELOW_1 else f"at most {most:g}"
            raise ConfigError(f"{group}.{name}={value} must be {low} and {high}")


@dataclass(frozen=True)
class Settings:
    """One job. Tuples are axes inside the run."""

    backend: Backend
    benchmarks: tuple[Benchmark, ...]
    timing: Timing
    launcher: Launcher | None  # None: the backend's default
    writers: tuple[Writer, ...]
    budget: Budget
    layouts: tuple[Layout, ...]  # empty: all ranks of a given world, 1x2 outside one
    dtypes: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]  # bytes, one tuple per dtype
    sizes_to_memory: bool  # 8..max: sizes that do not fit the memory are left out
    # rank: of each rank's block where a collective divides its message
    sizes_per: SizesPer
    pairs: Pairs
    search: NodeSearch
    # all: of a layout; each: each of its nodes alone, at once; doubling: 1, 2, 4 ... of its nodes
    nodes: NodesChoice
    # variable -> its values, of each variable with a key that has no field below; in_place=None is
    # the operation's default
    axes: Mapping[str, tuple[Any, ...]]
    schedule: Schedule
    sync: Sync
    cache: Cache | Literal["auto"]
    device: Device
    staging: Staging | Literal["auto"]
    cuda_ipc: Ipc
    interface: str | None
    # line rates in GB/s by the user's word, see network.told_rates
    limit: Mapping[str, float]
    env: Options
    trial: int
    bind: Binding
    expect: tuple[Expectation, ...]
    expect_by: ExpectBy  # what must meet a bound
    expect_normal: bool  # no case is slower than the published values of its hardware
    expect_missing: ExpectMissing  # an expectation that no measured case can meet
    preflight: Preflight
    on_error: OnError
    profile: str | None  # folder of profiles
    plan: bool
    verbose: bool
    label: str
    stage: Stage | Literal["none"]  # of an acceptance
    seed: int
    output: str

    @property
    def threads_per_rank(self) -> int:
        """The most threads of a rank that are busy in one of its cases."""
        streams = self.axes["streams"] if "streams" in self.backend.axes else (1,)
        is_one = self.axes["stream_threads"] == ("one",) and self.has_only_streams
        return self.backend.threads_per_rank * (1 if is_one else max(streams))

    @property
    def has_only_streams(self) -> bool:
        """Whether threads drive the connections of all of its operations."""
        return all("stream_threads" in each.axes for each in self.benchmarks)

    @property
    def ranks_have_gpus(self) -> bool:
        """Whether each rank uses a GPU; simulated ranks, which one process hosts, do not."""
        return self.device == "cuda" and not self.backend.hosts_ranks

    @property
    def uses_shm(self) -> bool:
        """Whether ranks of a node may communicate through /dev/shm: MPI and NCCL do."""
        return self.backend.launchers == "starts_mpi" or self.ranks_have_gpus

    @property
    def recorded_env(self) -> tuple[tuple[str, str], ...]:
        """`env` without credentials."""
        return tuple((name, masked(name, value)) for name, value in self.env)

    @property
    def case_s(self) -> float:
        """Seconds that one case may be measured; none of them is 0."""
        return self.timing.duration_s or self.budget.case_s or self.timing.case_s


@dataclass(frozen=True)
class Configuring:
    """What a feature, or an annex, knows of its keys: the CONFIGURING of its module `configuring`.

    values: of each key with more to check, the value of a case; raises ConfigError.
    check: whether the settings go together; raises ConfigError.
    """

    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    check: Callable[[Settings], None] = lambda settings: None


def from_config(config: Mapping[str, Any]) -> Settings:
    """Check a composed configuration; raises ConfigError naming the first key that is wrong."""
    raw = dict(config)
    read = ConfigReader(raw).read
    dtypes = tuple(dtype(str(name)).name for name in read("dtype"))
    benchmarks = read("benchmarks")
    sizes = tuple(sizes_bytes(raw.get("sizes"), name) for name in dtypes)
    backend = read("backend")
    device = backend.devices[0] if read("device") == "auto" else read("device")
    layouts = () if raw.get("layout") == "auto" else tuple(map(Layout.parse, read("layout")))
    layouts = on_nodes(layouts, read("nodes"))
    _check_nodes(read, benchmarks)
    if device == "cpu" and read("staging") == "pinned":
        raise ConfigError(
            "staging=pinned copies between a GPU and the host; with device=cpu there is none to"
            " copy"
        )
    refusal = too_many_pairs(raw.get("pairs"), layouts, sizes)
    if refusal is not None and not read("plan"):
        raise ConfigError(refusal)
    timing = read("timing")
    if not isinstance(timing, Timing):
        raise ConfigError(
            f"timing={timing} is not a commbench.config.settings.Timing; derive it from that class"
        )
    if timing.is_soak:
        needed_annex(f"{SOAKS}.measuring", f"timing.duration_s={timing.duration_s:g}")
    if timing.is_soak or timing.repetitions is not None:
        timing = replace(timing, visits=1, launches=1)
    settings = Settings(
        backend=backend,
        benchmarks=benchmarks,
        timing=timing,
        launcher=None if raw.get("launcher") is None else read("launcher"),
        writers=read("writers"),
        budget=typed(Budget, read("budget"), "budget"),
        layouts=layouts,
        dtypes=dtypes,
        sizes=sizes,
        **{name: read(name) for name in UNCHANGED},
        sizes_to_memory=f"..{TO_MEMORY}" in str(raw.get("sizes")),
        pairs=_checked_pairs(raw.get("pairs")),
        search=typed(NodeSearch, read("search"), "search"),
        axes={name: _axis_values(read, name, device) for name in AXIS_KEYS},
        device=device,
        interface=None if raw.get("interface") is None else check_interface(read("interface")),
        limit=told_rates(word for word in read("limit") if word is not None),
        env=_checked_env(read("env")),
        expect=expectations(
            read("expect"), [benchmark.name for benchmark in benchmarks], read("expect_by")
        ),
        expect_normal=_expects_normal(read("expect")),
        profile=_checked_profile(read("profile"), backend),
        label=read("label") or "",
        output=read("output") or "results",
    )
    for each in registered(Configuring):
        each.check(settings)
    return settings


OWN_FIELDS = {field.name for field in fields(Settings)}
# the variables of Settings.axes
AXIS_KEYS = tuple(each.name for each in TABLE if each.key and each.name not in OWN_FIELDS)


def on_nodes(layouts: Sequence[Layout], nodes: NodesChoice) -> tuple[Layout, ...]:
    """The layouts that a run measures: with nodes=doubling each also on 1, 2, 4 ... nodes."""
    if nodes != "doubling":
        return tuple(layouts)
    return tuple(dict.fromkeys(part for layout in layouts for part in layout.doublings()))


def _check_nodes(read: Callable[[str], Any], benchmarks: Sequence[Benchmark]) -> None:
    """Raises ConfigError for an operation that can't run among the ranks of each node."""
    if read("nodes") != "each":
        return
    unfit = [each.name for each in benchmarks if REFUSED_AXES.intersection(each.axes)]
    if unfit:
        raise ConfigError(
            f"nodes=each is for collectives with a part for each rank; {unfit[0]} is not one; use"
            " benchmark=[all_reduce,all_to_all]"
        )


def _axis_values(read: Callable[[str], Any], name: str, device: Device) -> tuple[Any, ...]:
    """The values of an axis; one for a key that takes no list. Raises ConfigError."""
    values = read(name)
    if not isinstance(values, tuple):
        values = (values,)
    known = BY_NAME[name]
    values = tuple(None if value == known.null else value for value in values)
    if name == "timer":
        return _timers(values, device)
    if known.feature is not None:
        return _values_of_feature(known, known.feature, values)
    return values


def _values_of_feature(known: Variable, feature: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """As the feature reads those that are given. Raises ConfigError, also where it is not there."""
    given = [value for value in values if value is not None]
    if not given:
        return values
    needed_annex(f"{FEATURES}.{feature}", f"{known.name}={given[0]}")
    readers = (each.values.get(known.name) for each in registered(Configuring))
    value_of = next(filter(None, readers), lambda value: value)
    return tuple(None if value is None else value_of(value) for value in values)


def _timers(timers: Sequence[str], device: Device) -> tuple[str, ...]:
    """Raises ConfigError for a clock that the device does not have."""
    allowed = TIMERS[device]
    chosen = [allowed[0] if timer == "auto" else timer for timer in timers]
    foreign = [timer for timer in chosen if timer not in allowed]
    if foreign:
        other = "cuda" if device == "cpu" else "cpu"
        raise ConfigError(
            f"timer={foreign[0]} needs device={other}, this is device={device}; allowed:"
            f" {', '.join(allowed)}"
        )
    return tuple(dict.fromkeys(chosen))


def too_many_pairs(
    pairs: object, layouts: Sequence[Layout], sizes: Sequence[Sequence[int]]
) -> str | None:
    """Why a run with pairs=all is refused, which may be planned nevertheless: it makes more than
    MAX_PAIRS cases. None if it does not."""
    cases = sum(layout.size**2 for layout in layouts) * sum(map(len, sizes))
    if pairs != "all" or cases <= MAX_PAIRS:
        return None
    return (
        f"pairs=all makes {cases} cases here, at most {MAX_PAIRS} are allowed; name pairs, fewer"
        " sizes or fewer ranks"
    )


def _checked_pairs(value: Any) -> Pairs:
    """Raises ConfigError."""
    if value in ("neighbours", "all", SEARCH):
        return str(value)
    pairs: list[Any] = value if isinstance(value, list) and value else [None]
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2
        if not is_pair or not all(type(rank) is int and rank >= 0 for rank in pair):
            raise ConfigError(
                f"pairs={value} is neither neighbours, all, search nor a list of rank pairs like"
                " [[0,1],[2,3]]"
            )
    return tuple((first, second) for first, second in pairs)


def _expects_normal(words: Container[Any]) -> bool:
    """Raises ConfigError where nothing is there that knows what is normal."""
    if EXPECT_NORMAL not in words:
        return False
    needed_annex(KNOWN_VALUES, f"expect={EXPECT_NORMAL}").check_known_values()
    return True


def _checked_profile(folder: str | None, backend: Backend) -> str | None:
    """Raises ConfigError."""
    if folder is not None and not backend.has_profiler:
        raise ConfigError(
            f"profile={folder} records with torch's profiler, which backend={backend.name} does"
            " not use; take a backend of torch.distributed, such as gloo"
        )
    return folder or None


def _checked_env(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    for name, value in values.items():
        check_text(f"env.{name}", value)
        if isinstance(value, list):
            raise list_refusal(f"env.{name}", value)
        if isinstance(value, dict) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(
                f"env.{name}={value} is not an environment variable; write env.NAME=TEXT"
            )
    return tuple(
        sorted((name, "" if value is None else str(value)) for name, value in values.items())
    )


@dataclass(frozen=True)
class Job:
    """One point of a sweep: its overrides and the configuration that they make.

    `config` is the record, without credentials. `digest` is a hash of the whole configuration
    except its output, equal on all ranks that have the same one.
    """

    overrides: tuple[str, ...]
    settings: Settings
    config: dict[str, Any]
    digest: str
    whole: dict[str, Any] = field(repr=False)  # with credentials: never written to a file

    def with_layout(self, layout: Layout) -> Job:
        """The job for a world of this layout; the same job where its configuration names a
        layout."""
        if self.settings.layouts:
            return self
        return job_of(self.whole | {"layout": str(layout)}, (*self.overrides, f"layout={layout}"))

    def text(self) -> str:
        """The text that `received` reads in the ranks; it may contain credentials."""
        return json.dumps([self.overrides, self.whole])


def job_of(whole: Mapping[str, Any], overrides: Iterable[str]) -> Job:
    """Check a composed configuration; raises ConfigError, in one line."""
    try:
        whole = {**whole, "expect": with_bounds(whole["expect"])}
        settings = from_config(whole)
        _check_part(whole["scale"], whole["part"], whole["parts"])
    except ConfigError as error:
        raise ConfigError(one_line(str(error))) from error
    identity = {key: value for key, value in whole.items() if key != "output"}
    # as features read them: a file by its contents, of which another node may have another version
    identity |= {name: own for name, own in settings.axes.items() if BY_NAME[name].feature}
    identity["inputs"] = [benchmark.recorded_inputs() for benchmark in settings.benchmarks]
    text = json.dumps(identity, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    config = {key: masked(key, value) for key, value in whole.items()}
    return Job(tuple(overrides), settings, config, digest, dict(whole))


def _check_part(scale: Any, part: Any, parts: Any) -> None:
    """Raise ConfigError for a scale or a part that the experiment does not have."""
    scales = list(parts) if isinstance(parts, dict) else []
    elsewhere = "it belongs to an experiment: experiment=NAME"
    if scale != FULL and scale not in scales:
        allowed = f"allowed: {', '.join(scales)}" if scales else elsewhere
        raise ConfigError(f"scale={scale} is unknown; {allowed}")
    count = len(parts.get(scale) or ()) if scales else 0
    if part is not None and (type(part) is not int or not 1 <= part <= count):
        raise ConfigError(
            f"part={part} is unknown; {f'scale={scale} has 1 to {count}' if count else elsewhere}"
        )


def received(text: str) -> Job:
    """The job of a rank, from the text that its parent exported."""
    overrides, whole = json.loads(text)
    return job_of(whole, overrides)
