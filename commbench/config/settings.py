"""The configuration, checked once: every value behind this module is typed and possible."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commbench.core.case import Benchmark
from commbench.core.columns import CASES
from commbench.core.dtypes import dtype
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Launcher, Writer
from commbench.core.secrets import recorded
from commbench.core.text import first_line
from commbench.core.units import parse_bytes
from commbench.hardware.network import check_interface

from .keys import INT64_MAX, TIMING_MODES, ConfigReader, list_refusal
from .targets import construct

PRESETS = {  # elements: 40 B to 40 MB, and to 4 GB, for float32
    "decades": tuple(10**k for k in range(1, 8)),
    "mlbench": tuple(10**k for k in range(1, 10)),
}
OCTAVES_BYTES = tuple(2**k for k in range(3, 25))  # 8 B to 16 MiB
MAX_DURATION_S = 1e8  # three years: a clock, a deadline and a store's timeout can still hold it
MAX_REPETITIONS = 10**12
MAX_PAIRS = 10**6  # of all layouts and sizes together: each is a case of its own
NUMERIC_COLUMNS = tuple(column.name for column in CASES if column.kind in ("integer", "number"))
NORMAL = "normal"  # expect=normal
EXPECTATION = re.compile(r"\s*(?:(\w+):)?(\w+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*")

Pairs = str | tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Timing:
    """When a case has been repeated often enough; `target` is the relative half-width of the confidence interval."""

    name: str = "custom"
    target: float = 0.01
    case_s: float = 10.0
    z: float = 1.96
    repetitions: int | None = None  # a fixed number instead of a target
    warmup_repetitions: int = 10
    warmup_s: float = 0.05
    duration_s: float | None = None  # a soak: repeat for this long, and keep the timeline
    interval_s: float = 0.1  # of a soak's timeline

    def __post_init__(self) -> None:
        for name in ("case_s", "z", "warmup_s", "duration_s", "interval_s"):
            value = getattr(self, name)
            if value is not None and not value <= MAX_DURATION_S:
                raise ConfigError(f"timing.{name}={value:g} is not at most {MAX_DURATION_S:g}")
        if max(self.repetitions or 1, self.warmup_repetitions) > MAX_REPETITIONS:
            raise ConfigError(f"{self}: at most {MAX_REPETITIONS} repetitions are allowed")
        if not (0 < self.target < 1 and self.case_s > 0 and self.z > 0 and self.warmup_s >= 0):
            raise ConfigError(f"{self}: target lies between 0 and 1, case_s and z above 0, warmup_s from 0 on")
        if self.warmup_repetitions < 0 or (self.repetitions is not None and self.repetitions < 1):
            raise ConfigError(f"{self}: repetitions start at 1, warmup_repetitions at 0")
        if not (self.interval_s >= 1e-3 and (self.duration_s is None or self.duration_s > 0)):
            raise ConfigError(f"{self}: duration_s is above 0, interval_s at least 0.001")


@dataclass(frozen=True)
class Budget:
    """Time and memory that a run may take; None means no bound of its own."""

    case_s: float | None = None
    total_s: float | None = None
    memory_share: float = 0.5
    restarts: int = 2  # fresh worlds for what a broken one has left
    late_s: float = 60.0  # how much later than expected a rank may arrive at a meeting
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
            if value is not None and not 0 < value <= MAX_DURATION_S:
                text = "is not above 0" if not value > 0 else f"is not at most {MAX_DURATION_S:g}"
                raise ConfigError(f"budget.{name}={value} {text}; null means no bound")


@dataclass(frozen=True)
class Expectation:
    """`column` of every case (of one benchmark, if named) compared with a number."""

    text: str
    benchmark: str | None
    column: str
    comparison: str
    bound: float


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
    pairs: Pairs
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
    def recorded_env(self) -> tuple[tuple[str, str], ...]:
        """`env` without credentials."""
        return tuple((name, recorded(name, value)) for name, value in self.env)

    @property
    def case_s(self) -> float:
        """Seconds that one case may be measured."""
        if self.timing.duration_s is not None:
            return self.timing.duration_s
        return self.timing.case_s if self.budget.case_s is None else self.budget.case_s


def from_config(config: DictConfig) -> Settings:
    """Check a composed configuration; raises ConfigError naming the first key that is wrong."""
    reader = ConfigReader(_plain(config))
    read, raw = reader.read, reader.raw
    dtypes = tuple(dtype(str(name)).name for name in read("dtype"))
    benchmarks = read("benchmarks")
    sizes = tuple(sizes_bytes(raw.get("sizes"), name) for name in dtypes)
    backend = read("backend")
    device = backend.devices[0] if read("device") == "auto" else read("device")
    layouts = () if raw.get("layout") == "auto" else tuple(Layout.parse(text) for text in read("layout"))
    budget = {**read("budget"), "_target_": "commbench.config.settings.Budget"}
    interface = read("interface")
    _check_combinations(device, read("staging"), read("schedule"), read("sync"))
    return Settings(
        backend=backend,
        benchmarks=benchmarks,
        timing=_timing(read("timing")),
        launcher=None if raw.get("launcher") is None else read("launcher"),
        writers=read("writers"),
        budget=construct(budget, "budget", ()),
        layouts=layouts,
        dtypes=dtypes,
        sizes=sizes,
        pairs=_pairs(raw.get("pairs"), layouts, sum(map(len, sizes))),
        schedule=read("schedule"),
        windows=read("window"),
        streams=read("streams"),
        reductions=read("reduction"),
        roots=read("root"),
        in_place=read("in_place"),
        engines=read("engine"),
        timing_modes=_timing_modes(read("timing_mode"), device),
        sync=read("sync"),
        cache=read("cache"),
        device=device,
        staging=read("staging"),
        cuda_ipc=read("cuda_ipc"),
        interface=interface if interface is None else check_interface(interface),
        env=_environment(read("env")),
        launch=read("launch"),
        bind=read("bind"),
        expect=_expectations(read("expect"), [benchmark.name for benchmark in benchmarks]),
        expect_normal=NORMAL in read("expect"),
        preflight=read("preflight"),
        on_error=read("on_error"),
        plan=read("plan"),
        label=read("label") or "",
        seed=read("seed"),
        output=read("output") or "results",
    )


def _timing(timing: Any) -> Timing:
    if not isinstance(timing, Timing):
        raise ConfigError(f"timing={timing} is not a commbench.config.settings.Timing; derive it from that class")
    return timing


def _plain(config: DictConfig) -> dict[str, Any]:
    try:
        raw = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the configuration has a broken reference: {first_line(error)}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"the configuration is a {type(raw).__name__}; it must be a mapping of keys")
    return {str(key): value for key, value in raw.items()}


def sizes_bytes(spec: Any, name: str) -> tuple[int, ...]:
    """Message sizes in bytes for elements of that dtype; raises ConfigError."""
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
    return tuple(dict.fromkeys(_size_bytes(value, name, itemsize) for value in values))


def _size_bytes(value: Any, name: str, itemsize: int) -> int:
    try:
        size = parse_bytes(value)
    except ConfigError as error:
        raise ConfigError(f"sizes: {error}") from error
    if not 1 <= size <= INT64_MAX:
        raise ConfigError(f"sizes=[{value}] is not from 1 to 2^63-1 bytes; write e.g. 64, 1KiB or 4MB")
    if size % itemsize:
        near = max(itemsize, size // itemsize * itemsize)
        raise ConfigError(
            f"sizes=[{value}] is not a whole number of {name} elements ({itemsize} B each); write e.g. [{near}]"
        )
    return size


def _timing_modes(modes: Sequence[str], device: str) -> tuple[str, ...]:
    """Raises ConfigError for a clock that the device does not have."""
    allowed = TIMING_MODES[device]
    chosen = [allowed[0] if mode == "auto" else mode for mode in modes]
    foreign = [mode for mode in chosen if mode not in allowed]
    if foreign:
        other = "cuda" if device == "cpu" else "cpu"
        raise ConfigError(
            f"timing_mode={foreign[0]} needs device={other}, this is device={device}; allowed: {', '.join(allowed)}"
        )
    return tuple(dict.fromkeys(chosen))


def _check_combinations(device: str, staging: str, schedule: str, sync: str) -> None:
    """Raises ConfigError for values that exclude each other."""
    if device == "cpu" and staging == "pinned":
        raise ConfigError("staging=pinned copies between a GPU and the host; with device=cpu there is none to copy")
    if schedule == "rounds" and sync == "window":
        raise ConfigError("sync=window is for operations of all ranks; schedule=rounds needs sync=barrier")


def _pairs(value: Any, layouts: Sequence[Layout], sizes: int) -> Pairs:
    """Raises ConfigError, also where there would be more cases than anybody can plan or measure."""
    if value in ("neighbours", "all"):
        cases = sum(layout.size**2 for layout in layouts) * sizes
        if value == "all" and cases > MAX_PAIRS:
            raise ConfigError(
                f"pairs=all makes {cases} cases here, at most {MAX_PAIRS} are allowed; name pairs or fewer ranks"
            )
        return str(value)
    pairs = value if isinstance(value, list) else []
    valid = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    valid = [pair for pair in valid if all(type(rank) is int and rank >= 0 for rank in pair)]
    if not valid or len(valid) < len(pairs):
        raise ConfigError(f"pairs={value} is neither neighbours, all nor a list of rank pairs like [[0,1],[2,3]]")
    return tuple((pair[0], pair[1]) for pair in valid)


def _environment(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    for name, value in values.items():
        if isinstance(value, list):
            raise list_refusal(f"env.{name}", value)
        if isinstance(value, dict) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(f"env.{name}={value} is not an environment variable; write env.NAME=TEXT")
    return tuple(sorted((name, "" if value is None else str(value)) for name, value in values.items()))


def parse_expectation(text: Any) -> Expectation:
    """From 'busbw_gb_per_s>=380' or 'all_reduce:median_s<1e-3'; raises ConfigError."""
    match = EXPECTATION.fullmatch(str(text))
    try:
        bound = float(match[4]) if match else None
    except ValueError:
        bound = None
    if match is None or bound is None:
        example = "'busbw_gb_per_s>=380' or 'all_reduce:median_s<1e-3'"
        raise ConfigError(
            f"expect={text} is neither normal nor a comparison: write"
            f" [benchmark:]column, one of >= <= > <, a number: {example}"
        )
    if match[2] not in NUMERIC_COLUMNS:
        near = difflib.get_close_matches(match[2], NUMERIC_COLUMNS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        columns = ", ".join(NUMERIC_COLUMNS)
        raise ConfigError(f"expect={text}: {match[2]} is not a numeric column; {hint}columns: {columns}")
    return Expectation(str(text), match[1], match[2], match[3], bound)


def _expectations(texts: Sequence[Any], benchmarks: Sequence[str]) -> tuple[Expectation, ...]:
    """Raises ConfigError, also for a benchmark that does not run."""
    expected = tuple(parse_expectation(text) for text in texts if text not in (None, NORMAL))
    for expectation in expected:
        if expectation.benchmark not in (None, *benchmarks):
            raise ConfigError(
                f"expect={expectation.text}: {expectation.benchmark} does not run here;"
                f" benchmarks: {', '.join(benchmarks)}"
            )
    return expected
