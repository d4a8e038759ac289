"""The conditions recorded with each case: the overhead of a call, wires and GPUs, and what the
library reports.

Also the reference case, measured in each pass: if its time changes, so has the machine, and not the
case under test.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.buffers.cuda_ipc import CudaExporter, probe_cuda_ipc
from commbench.buffers.memory import buffer_bytes
from commbench.config.settings import Settings, Timing
from commbench.core.case import Benchmark, CaseGroup, Planned, World
from commbench.core.errors import ConfigError, Unsupported
from commbench.core.program import AllReduce, BufferSpec, Copy, Program, View
from commbench.core.protocols import GROUP_ORDER, Communicator, Control, Runner
from commbench.core.terminal import first_line
from commbench.core.variables import Mode, TimingMode
from commbench.engines.lowered import Lowered, PythonRunner, now_ns
from commbench.hardware import nvml, resource_limits
from commbench.world.heartbeat import Progress
from commbench.world.output import print_error

from .case import CaseVisit
from .plan import PlanFacts, plan
from .preflight import MEETING_S, uses_shm
from .samples import Samples
from .statistics import Series, median_interval
from .time_limits import case_deadline_s
from .transports import LogReader, TransportEvidence, gather_evidence
from .visit_setup import VisitSetup

CALL_REPETITIONS = 200
COPY_REPETITIONS = 20
EMPTY_REPETITIONS = 20_000
COPIES_PER_SAMPLE = 8  # so that waiting for them does not affect the rate
COPY_BYTES = 256 * 2**20  # beyond any GPU's cache
# copied first; a device slower than any GPU would need seconds for 256 MiB
CACHED_COPY_BYTES = 16 * 2**20
SLOW_COPY_GB_PER_S = 20.0
HOST_COPY_BYTES = (*(4**power for power in range(6, 13)), 2**25, 2**26)  # 4 KiB to 64 MiB
WAKE_BYTES = 16 * 2**20
WAKE_S = 0.3  # that an idle link may take to reach its full rate
OFF_CACHE_BYTES = 2**25  # a copy of this size is enough unless the last cache is larger
LEAST_HOST_COPIES = 3
HOST_COPIED_BYTES = 2**22  # of each size: at least this many copies, and this many bytes
# the reference case
REFERENCE_BYTES = 8
REFERENCE_REPETITIONS = 50
REFERENCE_COPY_BYTES = 256 * 1024
REFERENCE_COPIES = 40
REFERENCE_S = 0.05  # limits its warm-up
MOVED = 0.05  # relative to the median over passes


@dataclass(frozen=True)
class Conditions:
    """What a row needs besides its case and its samples; the same for all cases of a run."""

    # by engine: between the two stamps of a program without steps
    empty_sample_s: Mapping[str, float]
    overhead_s: Mapping[str, float]  # by engine: of a call
    cores: float  # that the ranks of a node may use
    threads_per_rank: int
    cache_bytes: int
    evidence: TransportEvidence
    world: World
    hosts: tuple[str, ...] = ()  # the name of each node
    disturbed: frozenset[int] = frozenset()  # passes in which the reference case moved
    joins_messages: bool = False  # see Backend
    # where ranks communicate through a /dev/shm that is too small
    small_shm_nodes: frozenset[int] = frozenset()
    # of one core, by the bytes of the copy
    host_copies_gb_per_s: Mapping[int, float] = field(default_factory=dict)

    def core_copy_gb_per_s(self, copied_bytes: int) -> float | None:
        """The rate at which a core copies so many bytes: the best of the next smaller measured size
        and all above it.

        Larger sizes count because a copy of a few kB is as fast, but numpy's call takes longer than
        the copy.
        """
        rates = self.host_copies_gb_per_s
        below = max((size for size in rates if size <= copied_bytes), default=0)
        return max((rate for size, rate in rates.items() if size >= below), default=None)


class ConditionsReader:
    """Reads the conditions of an opened library. All ranks make its calls together; `run` is empty
    except on rank 0."""

    def __init__(
        self,
        settings: Settings,
        world: World,
        control: Control,
        run: dict[str, Any],
        communicator: Communicator,
    ) -> None:
        self._settings = settings
        self._world = world
        self._control = control
        self._run = run
        self._communicator = communicator
        self._log = LogReader()
        facts = communicator.facts()
        self._log.read(facts, facts.get(GROUP_ORDER, range(world.size)))

    def open_group(self, group: CaseGroup) -> Communicator | None:
        """Its communicator; new lines of the library's log are about its ranks."""
        library = self._communicator
        subset = library.for_graphs if group.captures else library.subset
        communicator = subset(group.members)
        if self._log.available:
            self._log.read(library.facts(), group.members)
        return communicator

    def read(
        self, single: Communicator | None, cases: Sequence[Planned], facts: PlanFacts
    ) -> Conditions:
        """`single` is the group of rank 0 alone; it is None on other ranks, where measured values
        stay empty."""
        library = self._communicator.facts()
        empty_s = dict[str, float]()
        overhead_s = dict[str, float]()
        host_copies = dict[int, float]()
        if self._settings.device == "cuda" and len(self._world.hosted) == 1:
            wake_links(self._communicator)
        evidence = gather_evidence(self._world, self._control, library, self._run, self._log)
        if self._settings.device == "cuda" and "ipc_probe" not in library:
            probed = probe_cuda_ipc(CudaExporter, self._world, self._control, MEETING_S)
            self._run |= {"ipc_probe": probed} if self._run else {}
        engines = {planned.case.engine for planned in cases if not planned.skip}
        if "native" in engines and len(self._world.hosted) == 1:
            self._load_native_engine()
        if single is not None and len(self._world.hosted) == 1:
            empty_s = empty_samples_s(engines)
            overhead_s = call_overheads_s(single, cases)
            evidence = replace(evidence, copy_gb_per_s=copy_gb_per_s(single, cases))
            on_cpus = [
                planned
                for planned in cases
                if planned.case.device == "cpu" and planned.size > 1 and not planned.skip
            ]
            if on_cpus:
                largest = min(
                    max(map(copied_bytes, on_cpus)), max(facts.cache_bytes, OFF_CACHE_BYTES)
                )
                host_copies = host_copies_gb_per_s(largest)
        self._control.agree(None, MEETING_S, "calibration")
        nodes = self._run["provenance"]["nodes"] if self._run else ()
        small = [number for number, node in enumerate(nodes) if resource_limits.small_shm(node)]
        return Conditions(
            empty_sample_s=empty_s,
            overhead_s=overhead_s,
            cores=facts.cores,
            threads_per_rank=self._settings.backend.threads_per_rank,
            small_shm_nodes=frozenset(small if uses_shm(self._settings, self._world) else ()),
            cache_bytes=facts.cache_bytes,
            evidence=evidence,
            world=self._world,
            joins_messages=self._settings.backend.joins_messages,
            hosts=tuple(str(node.get("host.hostname", "?")) for node in nodes),
            host_copies_gb_per_s=host_copies,
        )

    def _load_native_engine(self) -> None:
        """Takes 0.3 s: on all ranks at the same time, so that rank 0 does not wait for the others
        later. Raises ConfigError on all ranks where one can't."""
        missing = None
        cache_problem = None
        try:
            cache_problem = import_module("commbench.engines.native").cache_problem
        except ImportError as error:  # this numba and this numpy may not fit
            missing = f"engine=native needs numba: {first_line(error)}; use engine=python"
        missing = self._control.agree(missing, MEETING_S, "loading the engine")
        if missing is not None:
            raise ConfigError(missing, shared=True)
        cache_problem = self._control.agree(cache_problem, MEETING_S, "loading the engine")
        if cache_problem is not None and self._world.rank == 0:
            print_error(cache_problem)

    def after(
        self, conditions: Conditions, planned: Planned, control: Control, deadline_s: float
    ) -> Conditions:
        """Adds what the library logged during a case, in which pairs may have connected. The case's
        ranks call it."""
        if not self._log.available:
            return conditions
        self._log.read(self._communicator.facts(), planned.members)
        records = control.gather(self._log.record(), deadline_s, f"transports of {planned.case}")
        return replace(conditions, evidence=conditions.evidence.extended(records, self._log))


def copied_bytes(planned: Planned) -> int:
    """The bytes of the largest buffer of any rank, with all its copies: the memory that successive
    operations use."""
    specs = (spec for rank in planned.active for spec in planned.program(rank).buffers)
    return max((buffer_bytes(spec, planned.pool) for spec in specs), default=0)


# ---------------------------------------------------------------- the overhead of stamps and calls,
# rates of copies


def empty_samples_s(engines: Collection[str]) -> dict[str, float]:
    """Median seconds between the stamps of a repetition without steps, by engine, for those engines
    that run here.

    Every sample includes them; they are never subtracted (method: Hoefler & Belli 2015, timer
    overhead).
    """
    nothing: Lowered[Any] = Lowered((), (), ())
    runners: dict[str, Runner] = {"python": PythonRunner(nothing, 1)}
    if "native" in engines:
        from commbench.engines.native import NativeRunner

        runners["native"] = NativeRunner(nothing, 1, None)
    return {
        name: _median_elapsed_s(runners[name](EMPTY_REPETITIONS))
        for name in {*engines} & {*runners}
    }


def wake_links(communicator: Communicator) -> None:
    """Copy to the GPU until NVML shows its PCIe link at its full rate, for WAKE_S at most: that of
    an idle GPU may be slower (GeForce: generation 1), and limits follow from it."""
    if not _has_slow_link():
        return
    until_s = time.monotonic() + WAKE_S
    with suppress(MemoryError):
        buffer = communicator.allocate(BufferSpec("wake", WAKE_BYTES, "uint8"), 1)
        while _has_slow_link() and time.monotonic() < until_s:
            buffer.write(None)


def _has_slow_link() -> bool:
    return any((gpu.pcie_generation or 0) < (gpu.pcie_generation_max or 0) for gpu in nvml.gpus())


def call_overheads_s(communicator: Communicator, cases: Iterable[Planned]) -> dict[str, float]:
    """Seconds of an all_reduce on a group of one rank, by the host's clock, for each engine of the
    cases.

    Without staging if a case has none.
    """
    overheads = dict[str, float]()
    data = View("data")
    program = Program((BufferSpec("data", 1, "float32"),), (AllReduce(data, data, "sum"),))
    modes = sorted(
        (planned.case.mode for planned in cases if not planned.skip),
        key=lambda mode: mode.staging,
        reverse=True,
    )
    for engine, mode in {mode.engine: mode for mode in modes}.items():
        timing_mode: TimingMode = "host" if mode.device == "cpu" else "host_sync"
        with suppress(Unsupported, MemoryError):
            buffers = {0: {"data": communicator.allocate(program.buffers[0], 1)}}
            runner = communicator.prepare(
                {0: program}, buffers, replace(mode, sync="none", timing_mode=timing_mode)
            )
            overheads[engine] = _median_elapsed_s(runner(CALL_REPETITIONS))
    return overheads


def copy_gb_per_s(communicator: Communicator, cases: Iterable[Planned]) -> float | None:
    """Rate of a copy within the GPU of this rank, in 10^9 B/s; None on CPUs and if it can't be
    measured."""
    modes = [
        planned.case.mode for planned in cases if planned.case.device == "cuda" and not planned.skip
    ]
    if not modes:
        return None
    mode = replace(modes[0], sync="none", timing_mode="host_sync", staging="none")
    with suppress(Unsupported, MemoryError):
        rate = _copy_gb_per_s(communicator, mode, CACHED_COPY_BYTES)
        return rate if rate < SLOW_COPY_GB_PER_S else _copy_gb_per_s(communicator, mode, COPY_BYTES)
    return None


def _copy_gb_per_s(communicator: Communicator, mode: Mode, copy_bytes: int) -> float:
    """Raises Unsupported, MemoryError."""
    specs = tuple(BufferSpec(name, copy_bytes, "uint8") for name in ("source", "target"))
    program = Program(specs, (Copy(View("source"), View("target")),) * COPIES_PER_SAMPLE)
    buffers = {0: {spec.name: communicator.allocate(spec, 1) for spec in specs}}
    runner = communicator.prepare({0: program}, buffers, mode)
    runner(1)
    return COPIES_PER_SAMPLE * copy_bytes / _median_elapsed_s(runner(COPY_REPETITIONS)) / 1e9


def host_copies_gb_per_s(copied_bytes: int) -> dict[int, float]:
    """The best rate of some copies by this core, in 10^9 B/s, by their bytes: up to `copied_bytes`,
    at most 64 MiB.

    Beyond the caches the rate no longer changes, and touching the memory for the first time takes
    longer than copying. Empty where there is no memory for it.
    """
    largest = next((size for size in HOST_COPY_BYTES if size >= copied_bytes), HOST_COPY_BYTES[-1])
    rates = dict[int, float]()
    try:
        source = np.ones(largest, np.uint8)
        target = np.empty(largest, np.uint8)
    except MemoryError:
        return rates
    for size in HOST_COPY_BYTES[: HOST_COPY_BYTES.index(largest) + 1]:
        times = copy_times(
            target[:size], source[:size], max(LEAST_HOST_COPIES, HOST_COPIED_BYTES // size)
        )
        rates[size] = size / float(times.min()) / 1e9
    return rates


def copy_times(target: NDArray[np.uint8], source: NDArray[np.uint8], copies: int) -> Series:
    """Seconds of each of some copies by this core; the first ones load the memory into the
    cache."""
    stamps = [now_ns()]
    for _ in range(copies):
        np.copyto(target, source)
        stamps.append(now_ns())
    return np.diff(np.array(stamps)) * 1e-9


def _median_elapsed_s(stamps: NDArray[np.int64]) -> float:
    return float(np.median(stamps[0, :, 1] - stamps[0, :, 0])) * 1e-9


# ---------------------------------------------------------------- the reference case


class PassReading(NamedTuple):
    """The median of one pass with its 95 % interval, in seconds per operation."""

    median_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, times: Series) -> PassReading:
        """From seconds per operation; with fewer than 6, which have no interval, both ends are the
        median."""
        median = float(np.median(times))
        return cls(median, *(median_interval(times) or (median, median)))


class ReferenceCase:
    """A ping-pong of 8 B between the first two ranks of the largest layout, and a copy within each
    host's memory.

    All ranks make one; on rank 0 `passes` has the readings of each pass.
    """

    def __init__(self, settings: Settings, world: World, facts: PlanFacts) -> None:
        self._settings = replace(
            settings,
            benchmarks=(cast(Benchmark, P2PLatency()),),
            timing=Timing(
                "reference", repetitions=REFERENCE_REPETITIONS, warmup_s=0.0, case_s=REFERENCE_S
            ),
            budget=replace(settings.budget, case_s=None),
            layouts=(max(settings.layouts, key=lambda layout: layout.size),),
            dtypes=settings.dtypes[:1],
            sizes=((REFERENCE_BYTES,),),
            sizes_to_memory=False,
            pairs=((0, 1),),
            schedule="serial",
            axes={name: values[:1] for name, values in settings.axes.items()},
        )
        (planned,) = plan(self._settings, world, facts)
        self._planned = None if planned.skip else planned
        self.groups = set() if planned.skip else {planned.group}  # whose communicators it needs
        self._source = np.ones(REFERENCE_COPY_BYTES, np.uint8)
        self._target = np.ones(REFERENCE_COPY_BYTES, np.uint8)
        self.passes: dict[int, dict[str, PassReading]] = {}

    def measure(
        self,
        number: int,
        communicators: Mapping[CaseGroup, Communicator | None],
        control: Control,
        progress: Progress,
    ) -> None:
        """Measure the reference case of a pass; all ranks of the world call it. Raises
        WorldBroken."""
        readings: dict[str, PassReading] = {}
        planned = self._planned
        deadline_s = (
            MEETING_S if self._planned is None else case_deadline_s(self._planned, self._settings)
        )
        if planned is not None and (communicator := communicators[planned.group]) is not None:
            setup = VisitSetup(
                planned,
                communicator,
                control=control.subset(planned.members),
                settings=self._settings,
                empty_sample_s={},
                sink=lambda _: None,
                progress=progress,
                number=number,
            )
            outcome = CaseVisit(setup).measure()
            if isinstance(outcome, Samples) and not outcome.wrong_elements and control.rank == 0:
                readings["p2p_latency_s"] = PassReading.of(outcome.times(planned))
        progress.enter("the reference case")
        times = copy_times(self._target, self._source, REFERENCE_COPIES)[REFERENCE_COPIES // 4 :]
        copies = control.gather(PassReading.of(times), deadline_s, "reference case")
        if control.rank == 0:
            self.passes[number] = readings | {"copy_s": max(PassReading(*copy) for copy in copies)}

    def record(self) -> list[dict[str, object]]:
        """For run.json: the readings of each pass, and whether one of them moved."""
        disturbed = disturbed_passes(self.passes)
        return [
            {"pass": number, **readings, "moved": number in disturbed}
            for number, readings in self.passes.items()
        ]


def disturbed_passes(passes: Mapping[int, Mapping[str, PassReading]]) -> frozenset[int]:
    """The passes with a reading that differs from the median over all passes by more than 5 % and
    by more than half of its own interval."""
    moved = set()
    for name in {name for readings in passes.values() for name in readings}:
        known = {number: readings[name] for number, readings in passes.items() if name in readings}
        usual_s = float(np.median([reading.median_s for reading in known.values()]))
        for number, reading in known.items():
            if abs(reading.median_s - usual_s) > max(
                MOVED * usual_s, (reading.high_s - reading.low_s) / 2
            ):
                moved.add(number)
    return frozenset(moved)
