"""Settings x world -> cases. Pure: every rank makes the same plan from the same agreed facts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from commbench.contracts import Benchmark, BufferSpec, Case, Planned, World
from commbench.dtypes import dtype
from commbench.layout import Layout
from commbench.memory import buffer_bytes, slot_bytes
from commbench.settings import Settings

WINDOW_CAP_BYTES = 256 * 2**20  # a rank's messages in flight
ROTATION_CAP_BYTES = 64 * 2**20  # a rank's copies of one buffer
ROTATION_CAP_VIEWS = 1024  # prepared calls a buffer: beyond it small messages stay in cache, and say so
LEAST_WINDOW = 2
SETUP_S = 0.3  # allocate, connect, warm up and check, by experience
CONTROL_BYTES = 64 * 2**20  # a process's own needs beside the buffers


@dataclass(frozen=True)
class Facts:
    """What the plan needs of the machine; agreed by all ranks (the least of all nodes)."""

    memory_bytes: int  # that may be allocated on a node now
    cache_bytes: int  # last level
    cores: int  # that the ranks of a node share


def plan(settings: Settings, world: World, facts: Facts) -> tuple[Planned, ...]:
    """All cases in the order they run: shuffled by seed and launch, so that drift is not read as an effect."""
    jobs = [
        _planned(settings, world, facts, layout, benchmark, case)
        for layout in settings.layouts
        for benchmark in settings.benchmarks
        for case in _cases(settings, layout, benchmark)
    ]
    unique = list({job.case.case_id: job for job in jobs}.values())
    random.Random(f"{settings.seed}/{settings.launch}").shuffle(unique)
    return tuple(replace(job, order=order) for order, job in enumerate(unique))


def duration_s(settings: Settings, job: Planned) -> float:
    """An upper estimate of a case's time, for the plan and for deadlines."""
    return 0.0 if job.skip else SETUP_S + 1.25 * settings.case_s + job.node_bytes / 1e9


def _cases(settings: Settings, layout: Layout, benchmark: Benchmark) -> Iterator[Case]:
    def axis(name: str, values: tuple[object, ...]) -> tuple[object, ...]:
        return values if name in benchmark.axes else (None,)

    for engine, mode in itertools.product(settings.engines, settings.timing_modes):
        for kind, sizes in zip(settings.dtypes, settings.sizes, strict=True):
            for message_bytes, pair, window, in_place, reduction in itertools.product(
                sizes,
                axis("pair", _pairs(settings, layout)),
                axis("window", settings.windows),
                axis("in_place", settings.in_place),
                axis("reduction", settings.reductions),
            ):
                blocks = benchmark.blocks(layout.size)
                count = message_bytes // dtype(kind).itemsize // blocks
                real_bytes = count * blocks * dtype(kind).itemsize
                yield Case(
                    benchmark=benchmark.name,
                    backend=settings.backend.name,
                    engine=settings.backend.engines[0] if engine == "auto" else engine,
                    timing_mode="host" if mode == "auto" else mode,
                    timing=settings.timing.name,
                    sync="none" if benchmark.self_synchronising else settings.sync,
                    device=settings.device,
                    dtype=kind,
                    layout=str(layout),
                    pair=pair,  # type: ignore[arg-type]
                    message_bytes=real_bytes or message_bytes,
                    count=count,
                    window=_window(window, real_bytes),
                    in_place=in_place,  # type: ignore[arg-type]
                    reduction=reduction,  # type: ignore[arg-type]
                    root=None,
                    schedule=None,
                    streams=None,
                    staging="none",
                    cache=benchmark.cache if settings.cache == "auto" else settings.cache,
                    cuda_ipc=settings.cuda_ipc,
                    interface=settings.interface,
                    env=settings.env,
                )


def _pairs(settings: Settings, layout: Layout) -> tuple[str | None, ...]:
    if settings.pairs == "all":
        chosen = list(itertools.product(range(layout.size), repeat=2))
    elif settings.pairs == "neighbours":
        chosen = [(rank, rank + 1) for rank in range(layout.size - 1)]
    else:
        chosen = [pair for pair in settings.pairs if isinstance(pair, tuple)]
    return tuple(f"{a}-{b}" for a, b in chosen) or (None,)


def _window(window: object, message_bytes: int) -> int | None:
    """Fewer messages in flight where they would not fit under the cap, but never less than two."""
    if not isinstance(window, int):
        return None
    return min(window, max(LEAST_WINDOW, WINDOW_CAP_BYTES // max(message_bytes, 1)))


def _planned(
    settings: Settings, world: World, facts: Facts, layout: Layout, benchmark: Benchmark, case: Case
) -> Planned:
    misfit = layout.misfit(world)
    reason = misfit or _impossible(settings, layout, benchmark, case)
    if reason:
        return Planned(0, case, benchmark, () if misfit else layout.members(world), 1, 0, reason)
    members = layout.members(world)
    specs = [benchmark.program(case, rank, layout.size).buffers for rank in range(layout.size)]
    pool = _pool(case, specs, facts)
    needs = [sum(buffer_bytes(spec, pool) for spec in one) for one in specs]
    node_bytes = max(
        sum(needs[index] for index, rank in enumerate(members) if rank in node) + CONTROL_BYTES * len(node)
        for node in world.nodes
    )
    allowed = int(facts.memory_bytes * settings.budget.memory_share)
    if node_bytes > allowed:
        share = settings.budget.memory_share
        reason = f"needs {node_bytes} B on a node, allowed are {allowed} B (budget.memory_share={share})"
    return Planned(0, case, benchmark, members, pool, node_bytes, reason)


def _impossible(settings: Settings, layout: Layout, benchmark: Benchmark, case: Case) -> str | None:
    if layout.size < benchmark.min_ranks:
        return f"{benchmark.name} needs {benchmark.min_ranks} ranks, layout {layout} has {layout.size}"
    if case.count == 0:
        return f"{case.message_bytes} B of {case.dtype} can't be divided among {layout.size} ranks"
    stray = [rank for pair in case.pairs for rank in pair if rank >= layout.size]
    if stray:
        return f"pair {case.pair} needs rank {max(stray)}, layout {layout} has ranks 0 to {layout.size - 1}"
    if case.engine not in settings.backend.engines:
        return f"{case.backend} has no {case.engine} engine; it has: {', '.join(settings.backend.engines)}"
    if case.device not in settings.backend.devices:
        return f"{case.backend} does not run on {case.device}"
    return settings.backend.supports(case, layout.size)


def _pool(case: Case, specs: list[tuple[BufferSpec, ...]], facts: Facts) -> int:
    """How many copies rotation needs to walk through twice the cache (method: Intel MPI Benchmarks' -off_cache)."""
    if case.cache != "rotate":
        return 1
    largest = max((spec for one in specs for spec in one), key=lambda spec: slot_bytes(spec) * spec.slots)
    one_copy = slot_bytes(largest) * largest.slots
    wanted = -(-2 * max(facts.cache_bytes, case.message_bytes) // one_copy)
    return max(1, min(wanted, ROTATION_CAP_BYTES // one_copy, ROTATION_CAP_VIEWS // largest.slots))
