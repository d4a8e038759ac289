"""The configuration, checked once: everything behind this door is typed and possible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commbench.core.case import Benchmark
from commbench.core.dtypes import dtype
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Launcher, Writer
from commbench.core.secrets import recorded
from commbench.core.units import parse_bytes
from commbench.hardware.network import check_interface

from .expectation import NORMAL, Expectation, expectations
from .keys import INT64_MAX, Keys, construct, first_line

PRESETS = {  # elements; DESIGN: 40 B to 40 MB, to 4 GB for float32, and the peers' powers of two in bytes
    "decades": tuple(10**k for k in range(1, 8)),
    "mlbench": tuple(10**k for k in range(1, 10)),
}
OCTAVES_BYTES = tuple(2**k for k in range(3, 25))  # 8 B to 16 MiB
REDUCTIONS = ("sum", "prod", "min", "max", "avg")
DEVICES = ("auto", "cpu", "cuda")
ENGINES = ("auto", "python", "native")
TIMING_MODES = {  # of each device; the first one is `auto`
    "cpu": ("host",),
    "cuda": ("host_sync", "device_event", "graph", "throughput"),
}
STAGINGS = ("auto", "none", "pinned")
SYNCS = ("barrier", "window", "none")
SCHEDULES = ("serial", "rounds")
MOST_STREAMS = 64
MOST_WINDOW = 16384  # messages in flight: each is a step of the program
MOST_S = 1e8  # three years: a clock, a deadline and a store's timeout can still hold it
MOST_REPETITIONS = 10**12
MOST_PAIRS = 10**6  # of all layouts and sizes together: each is a case of its own
CACHES = ("auto", "warm", "rotate")
BINDS = ("auto", "core", "numa", "none")
PREFLIGHTS = ("strict", "warn", "off")
ON_ERRORS = ("continue", "stop")
CUDA_IPC = ("auto", "on", "off")


@dataclass(frozen=True)
class Timing:
    """When a case has been repeated enough. Times in seconds; `target` is the relative half-width of the interval."""

    name: str = "custom"
    target: float = 0.01
    case_s: float = 10.0
    z: float = 1.96
    repetitions: int | None = None  # a fixed number instead of a target
    warmup_repetitions: int = 10
    warmup_s: float = 0.05
    duration_s: float | None = None  # a soak: repeat for so long, and keep the time line
    interval_s: float = 0.1  # of a soak's time line

    def __post_init__(self) -> None:
        for name in ("case_s", "z", "warmup_s", "duration_s", "interval_s"):
            value = getattr(self, name)
            if value is not None and not value <= MOST_S:
                raise ConfigError(f"timing.{name}={value:g} is not at most {MOST_S:g}")
        if max(self.repetitions or 1, self.warmup_repetitions) > MOST_REPETITIONS:
            raise ConfigError(f"{self}: at most {MOST_REPETITIONS} repetitions of a kind are allowed")
        if not (0 < self.target < 1 and self.case_s > 0 and self.z > 0 and self.warmup_s >= 0):
            raise ConfigError(f"{self}: target lies between 0 and 1, case_s and z above 0, warmup_s from 0 on")
        if self.warmup_repetitions < 0 or (self.repetitions is not None and self.repetitions < 1):
            raise ConfigError(f"{self}: repetitions start at 1, warmup_repetitions at 0")
        if not (self.interval_s >= 1e-3 and (self.duration_s is None or self.duration_s > 0)):
            raise ConfigError(f"{self}: duration_s is above 0, interval_s at least 0.001")


@dataclass(frozen=True)
class Budget:
    """Time and memory allowed; None is no bound of its own."""

    case_s: float | None = None
    total_s: float | None = None
    memory_share: float = 0.5
    restarts: int = 2  # fresh worlds for what a broken one has left
    late_s: float = 60.0  # how much longer than expected a rank may take to a meeting
    silence_s: float = 8.0  # how long a rank may give no sign of life

    def __post_init__(self) -> None:
        if not 1 <= self.late_s <= 86400:
            raise ConfigError(f"budget.late_s={self.late_s:g} is not from 1 to 86400 seconds")
        if not 5 <= self.silence_s <= 86400:
            raise ConfigError(
                f"budget.silence_s={self.silence_s:g} is not from 5 to 86400 seconds; ranks beat every 2 s"
            )
        if not 0 < self.memory_share <= 1:
            raise ConfigError(f"budget.memory_share={self.memory_share} lies outside (0, 1]")
        if not 0 <= self.restarts <= 1000:
            raise ConfigError(f"budget.restarts={self.restarts} is not from 0 to 1000")
        for name in ("case_s", "total_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MOST_S:
                text = "is not above 0" if not value > 0 else f"is not at most {MOST_S:g}"
                raise ConfigError(f"budget.{name}={value} {text}; null means no bound")


@dataclass(frozen=True)
class Settings:
    """One job. Tuples are axes inside the run."""

    backend: Backend
    benchmarks: tuple[Benchmark, ...]
    timing: Timing
    launcher: Launcher | None  # None: the backend's first that fits
    writers: tuple[Writer, ...]
    budget: Budget
    layouts: tuple[Layout, ...]  # empty: all ranks of a given world, 1x2 outside one
    dtypes: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]  # bytes, one tuple a dtype
    pairs: str | tuple[tuple[int, int], ...]
    schedule: str
    windows: tuple[int, ...]
    streams: tuple[int, ...]
    reductions: tuple[str, ...]
    roots: tuple[int, ...]
    in_place: tuple[bool | None, ...]  # None: as the operation usually is
    engines: tuple[str, ...]
    timing_modes: tuple[str, ...]
    sync: str
    cache: str
    device: str
    staging: str
    cuda_ipc: str
    interface: str | None
    env: tuple[tuple[str, str], ...]
    launch: int
    bind: str
    expect: tuple[Expectation, ...]
    expect_normal: bool  # no case is slower than the published values of its hardware
    preflight: str
    on_error: str
    plan: bool
    label: str
    seed: int
    output: str

    @property
    def told_env(self) -> tuple[tuple[str, str], ...]:
        """`env` as it may be written down."""
        return tuple((name, recorded(name, value)) for name, value in self.env)

    @property
    def case_s(self) -> float:
        if self.timing.duration_s is not None:
            return self.timing.duration_s
        return self.timing.case_s if self.budget.case_s is None else self.budget.case_s


def from_config(config: DictConfig) -> Settings:
    """Check a composed configuration; raises ConfigError naming the first key that is wrong."""
    keys = Keys(_plain(config))
    dtypes = tuple(dtype(str(name)).name for name in keys.listed("dtype"))
    benchmarks = keys.built_all("benchmarks", "benchmark")
    sizes = tuple(sizes_bytes(keys.raw.get("sizes"), name) for name in dtypes)
    backend = keys.built("backend")
    device = _device(keys, backend)
    layouts = () if keys.raw.get("layout") == "auto" else tuple(Layout.parse(text) for text in keys.listed("layout"))
    timing = keys.built("timing")
    if not isinstance(timing, Timing):
        raise ConfigError(f"timing={timing} is no commbench.config.settings.Timing; derive it from that class")
    return Settings(
        backend=backend,
        benchmarks=benchmarks,
        timing=timing,
        launcher=None if keys.raw.get("launcher") is None else keys.built("launcher"),
        writers=keys.built_all("writers", "writer"),
        budget=construct({**keys.mapping("budget"), "_target_": "commbench.config.settings.Budget"}, "budget", ()),
        layouts=layouts,
        dtypes=dtypes,
        sizes=sizes,
        pairs=_bounded(_pairs(keys.raw.get("pairs")), layouts, sum(map(len, sizes))),
        schedule=_schedule(keys),
        windows=tuple(keys.integers("window", minimum=1, maximum=MOST_WINDOW)),
        streams=tuple(keys.integers("streams", minimum=1, maximum=MOST_STREAMS)),
        reductions=tuple(keys.choices("reduction", REDUCTIONS)),
        roots=tuple(keys.integers("root", minimum=0)),
        in_place=tuple(keys.flags("in_place")),
        engines=tuple(keys.choices("engine", ENGINES)),
        timing_modes=_timing_modes(keys, device),
        sync=keys.choice("sync", SYNCS),
        cache=keys.choice("cache", CACHES),
        device=device,
        staging=_staging(keys, device),
        cuda_ipc=keys.switch("cuda_ipc", CUDA_IPC),
        interface=_interface(keys.text("interface")),
        env=_environment(keys.mapping("env")),
        launch=keys.integer("launch", minimum=0),
        bind=keys.choice("bind", BINDS),
        expect=expectations(keys.listed("expect"), [one.name for one in benchmarks]),
        expect_normal=NORMAL in keys.listed("expect"),
        preflight=keys.switch("preflight", PREFLIGHTS),
        on_error=keys.choice("on_error", ON_ERRORS),
        plan=keys.flag("plan"),
        label=keys.text("label") or "",
        seed=keys.integer("seed", minimum=0),
        output=keys.text("output") or "results",
    )


def _plain(config: DictConfig) -> dict[str, Any]:
    try:
        raw = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the configuration has a broken reference: {first_line(error)}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"the configuration is a {type(raw).__name__}; it must be a mapping of keys")
    return {str(key): value for key, value in raw.items()}


def sizes_bytes(spec: Any, name: str) -> tuple[int, ...]:
    """Message sizes in bytes for elements of that type; raises ConfigError."""
    itemsize = dtype(name).itemsize
    if isinstance(spec, str) and spec in PRESETS:
        return tuple(count * itemsize for count in PRESETS[spec])
    if spec == "octaves":
        return tuple(size for size in OCTAVES_BYTES if size % itemsize == 0)
    if isinstance(spec, str) and not spec[:1].isdigit():
        raise ConfigError(
            f"sizes={spec} is unknown; allowed: {', '.join(PRESETS)}, octaves, or a list like [8,1KiB,4MB]"
        )
    values = spec if isinstance(spec, list) else [spec]
    if not values:
        raise ConfigError("sizes=[] measures nothing; give at least one size")
    return tuple(dict.fromkeys(_size(value, name, itemsize) for value in values))


def _size(value: Any, name: str, itemsize: int) -> int:
    try:
        size = parse_bytes(value)
    except ConfigError as error:
        raise ConfigError(f"sizes: {error}") from error
    if not 1 <= size <= INT64_MAX:
        raise ConfigError(f"sizes=[{value}] is not from 1 to 2^63-1 bytes; write e.g. 64, 1KiB or 4MB")
    if size % itemsize:
        near = max(itemsize, size // itemsize * itemsize)
        raise ConfigError(f"sizes=[{value}] is no whole number of {name} ({itemsize} B each); write e.g. [{near}]")
    return size


def _device(keys: Keys, backend: Backend) -> str:
    """As asked; auto is where the backend is at home."""
    device = keys.choice("device", DEVICES)
    return backend.devices[0] if device == "auto" else device


def _timing_modes(keys: Keys, device: str) -> tuple[str, ...]:
    """Raises ConfigError for a clock that the device does not have."""
    every = [mode for modes in TIMING_MODES.values() for mode in modes]
    own = TIMING_MODES[device]
    asked = [own[0] if mode == "auto" else mode for mode in keys.choices("timing_mode", ("auto", *every))]
    strange = [mode for mode in asked if mode not in own]
    if strange:
        other = "cuda" if device == "cpu" else "cpu"
        raise ConfigError(
            f"timing_mode={strange[0]} needs device={other}, this is device={device}; allowed: {', '.join(own)}"
        )
    return tuple(dict.fromkeys(asked))


def _staging(keys: Keys, device: str) -> str:
    staging = keys.choice("staging", STAGINGS)
    if device == "cpu" and staging == "pinned":
        raise ConfigError("staging=pinned copies between a GPU and the host; with device=cpu there is none to copy")
    return staging


def _schedule(keys: Keys) -> str:
    schedule = keys.choice("schedule", SCHEDULES)
    if schedule == "rounds" and keys.raw.get("sync") == "window":
        raise ConfigError("sync=window is for operations of all ranks; schedule=rounds needs sync=barrier")
    return schedule


def _pairs(value: Any) -> str | tuple[tuple[int, int], ...]:
    if value in ("neighbours", "all"):
        return str(value)
    wanted = f"pairs={value} is neither neighbours, all nor a list of rank pairs like [[0,1],[2,3]]"
    if not isinstance(value, list) or not value:
        raise ConfigError(wanted)
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(rank) is int and rank >= 0 for rank in pair):
            raise ConfigError(wanted)
    return tuple((pair[0], pair[1]) for pair in value)


def _bounded(
    pairs: str | tuple[tuple[int, int], ...], layouts: tuple[Layout, ...], sizes: int
) -> str | tuple[tuple[int, int], ...]:
    """The pairs; raises ConfigError where there would be more cases than anybody can plan or measure."""
    cases = sum(one.size**2 for one in layouts) * sizes
    if pairs == "all" and cases > MOST_PAIRS:
        raise ConfigError(
            f"pairs=all makes {cases} cases here, at most {MOST_PAIRS} are allowed; name pairs or fewer ranks"
        )
    return pairs


def _interface(given: str | None) -> str | None:
    return given if given is None else check_interface(given)


def _environment(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    for name, value in values.items():
        if isinstance(value, list):
            listed = ",".join(str(one) for one in value)
            raise ConfigError(
                f"env.{name} takes one value a run; for several fresh worlds: commbench -m env.{name}={listed}"
            )
        if isinstance(value, dict) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(f"env.{name}={value} is no environment variable; write env.NAME=TEXT")
    return tuple(sorted((name, "" if value is None else str(value)) for name, value in values.items()))
