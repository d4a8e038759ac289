"""The plan: all cases of a run. Every rank makes the same plan from the settings and the same
agreed facts.

For each layout and benchmark a `_Planner` makes the cases: every message (dtype and size) with
every value of each axis and every pair. It plans each of them: a case that is impossible here, or
needs too much memory, has a reason; the others have the number of copies of their buffers, and the
memory that they need.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commbench.backends.buffers.memory import buffer_bytes, host_bytes
from commbench.backends.buffers.staging import staged_program
from commbench.benchmarks.each_node import OnEachNode
from commbench.config.settings import SEARCH, Settings
from commbench.core.case import Benchmark, Planned, World
from commbench.core.layout import (
    AlikePairs,
    Layout,
    Pair,
    alike_pairs,
    all_pairs,
    pairs_text,
    rounds,
)
from commbench.core.payload import dtype
from commbench.core.program import DEVICE, BufferSpec, Program
from commbench.core.units import about_bytes
from commbench.core.variables import (
    BY_NAME,
    EVENT_TIMED,
    NO_DTYPE,
    Case,
    Schedule,
    Staging,
    Sync,
    TimerName,
)
from commbench.results.columns import grouped

from .further_rounds import pair_search
from .measuring import around, cases_of, deciding_on
from .plan_facts import PlanFacts
from .time_limits import BATCH_K

WINDOW_CAP_BYTES = 256 * 2**20  # per rank, of messages in flight
# per rank, of all copies of one buffer
ROTATION_CAP_BYTES = {"cpu": 64 * 2**20, "cuda": 512 * 2**20}
# prepared calls per buffer: beyond it small messages stay in cache (flag in_cache)
ROTATION_CAP_VIEWS = 1024
LEAST_WINDOW = 2
SETUP_S = 0.3  # to allocate, connect, warm up and check, by experience
CONTROL_BYTES = 64 * 2**20  # that a process needs besides its buffers


def plan(settings: Settings, world: World, facts: PlanFacts) -> tuple[Planned, ...]:
    """All cases in the order in which they run: shuffled by seed and launch, so that a drift is not
    taken for an effect of a variable."""
    cases = [
        planner.planned(case)
        for planner in _planners(settings, world, facts)
        for case in planner.cases(planner.pair_texts())
    ]
    unique = _unique(cases, settings)
    random.Random(f"{settings.seed}/{settings.trial}").shuffle(unique)
    # what is decided for them follows from the times of others
    unique.sort(key=lambda planned: deciding_on(planned.case) is not None)
    return tuple(replace(planned, order=order) for order, planned in enumerate(unique))


def plan_round(
    settings: Settings, world: World, facts: PlanFacts, pairs: Sequence[Pair], first_order: int
) -> tuple[Planned, ...]:
    """The cases of a further round of a search."""
    cases = [
        planner.planned(case)
        for planner in _planners(settings, world, facts)
        for case in planner.cases([*map(pairs_text, _directions(pairs, planner.benchmark))])
    ]
    return tuple(
        replace(planned, order=order) for order, planned in enumerate(cases, start=first_order)
    )


def pass_order(cases: Sequence[Planned], settings: Settings, number: int) -> list[Planned]:
    """The cases of a pass in a new random order, the same on all ranks; the first pass has the
    order of the plan."""
    ordered = sorted(cases, key=lambda planned: planned.order)
    if number > 1:
        random.Random(f"{settings.seed}/{settings.trial}/{number}").shuffle(ordered)
    return ordered


def setup_s(settings: Settings, planned: Planned) -> float:
    """A case's time without that of its repetitions."""
    if planned.skip:
        return 0.0
    visits = settings.timing.visits * settings.timing.launches
    return visits * (SETUP_S + planned.node_bytes / 1e9)


def duration_s(settings: Settings, planned: Planned) -> float:
    """An upper estimate of a case's time."""
    return 0.0 if planned.skip else setup_s(settings, planned) + 1.25 * settings.case_s


@dataclass(frozen=True)
class AlikeCases:
    """`cases` cases of a plan that differ in nothing but their pairs. `planned` is the first of
    them, `last_pair` that of the last; all need the same memory and time, or have the same reason.
    """

    planned: Planned
    last_pair: str | None
    cases: int

    @property
    def pairs(self) -> int:
        """The pairs of all cases, where all have as many (only rounds of listed pairs do not, and
        each of these is a case by itself)."""
        return self.cases * len(self.planned.case.pairs)


def plan_outline(settings: Settings, world: World, facts: PlanFacts) -> tuple[AlikeCases, ...]:
    """The cases of `plan`, counted and not made: pairs=all of thousands of ranks has millions."""
    alike = {}
    cases = []
    for planner in _planners(settings, world, facts):
        for pairs in planner.alike_pairs():
            last_pair = pairs_text(pairs.last) or None
            for case in planner.cases([pairs_text(pairs.first) or None]):
                planned = planner.planned(case)
                cases.append(planned)
                alike[case.case_id] = AlikeCases(planned, last_pair, pairs.cases)
    return tuple(alike[planned.case.case_id] for planned in _unique(cases, settings))


def _unique(cases: Sequence[Planned], settings: Settings) -> list[Planned]:
    """The cases without those that are the same, and with sizes=..max without those that do not fit
    the memory."""
    if settings.sizes_to_memory:
        cases = [planned for planned in cases if not (planned.skip and planned.node_bytes)]
    return list({planned.case.case_id: planned for planned in cases}.values())


def _planners(settings: Settings, world: World, facts: PlanFacts) -> Iterator[_Planner]:
    for layout in settings.layouts:
        place = _Place.of(layout, world)
        for benchmark in settings.benchmarks:
            planned = benchmark
            if settings.nodes == "each":
                planned = OnEachNode(benchmark, layout.ranks_per_node)
            yield _Planner(settings, facts, place, planned)


# ---------------------------------------------------------------- cases of a benchmark in a layout


@dataclass(frozen=True)
class _Place:
    """A layout in its world. `nodes` has the node of each rank of the layout, `processes` the
    number of the world's ranks on each node."""

    layout: Layout
    misfit: str | None
    members: tuple[int, ...]
    nodes: tuple[int, ...]
    processes: tuple[int, ...]

    @classmethod
    def of(cls, layout: Layout, world: World) -> _Place:
        misfit = layout.misfit(world)
        members = () if misfit else layout.members(world)
        nodes = tuple(map(world.node_of, members))
        return cls(layout, misfit, members, nodes, tuple(map(len, world.nodes)))

    def alike(self, cases: Iterable[Sequence[Pair]]) -> list[AlikePairs]:
        """Cases with a single pair by where it is (within a rank, on one node, on two); each other
        case by itself."""

        def place(pairs: tuple[Pair, ...]) -> tuple[object, ...]:
            if len(pairs) != 1 or max(pairs[0]) >= len(self.nodes):
                return pairs
            first, second = pairs[0]
            return first == second, self.nodes[first] == self.nodes[second]

        groups = grouped(dict.fromkeys(map(tuple, cases)), place)
        return [AlikePairs(same[0], same[-1], len(same)) for same in groups.values()]


@dataclass(frozen=True, eq=False)
class _Planner:
    """Plans the cases of a benchmark in a layout."""

    settings: Settings
    facts: PlanFacts
    place: _Place
    benchmark: Benchmark
    # by all variables but the pair, and whether that is one rank
    _paired_programs: dict[tuple[Case, bool], Program] = field(default_factory=dict)
    # by all variables but the pair, then by whether the rank is its first and its second
    _paired_buffers: dict[Case, dict[tuple[bool, bool], tuple[BufferSpec, ...]]] = field(
        default_factory=dict
    )

    def pair_texts(self) -> list[str | None]:
        """The text of Case.pair of each case."""
        cases = _pairs_at_once(self.settings, self.place.layout, self.benchmark)
        return [pairs_text(pairs) or None for pairs in cases]

    def alike_pairs(self) -> list[AlikePairs]:
        """The pairs of all cases, without making them all."""
        settings = self.settings
        layout = self.place.layout
        if settings.pairs == "all" and "pair" in self.benchmark.axes:
            return alike_pairs(layout, settings.schedule == "rounds")
        return self.place.alike(_pairs_at_once(settings, layout, self.benchmark))

    def cases(self, pair_texts: Sequence[str | None]) -> Iterator[Case]:
        settings = self.settings
        benchmark = self.benchmark
        schedule = settings.schedule if "pair" in benchmark.axes else None
        most_bytes = self.facts.memory_bytes * settings.budget.memory_share
        messages = _messages(settings, self.place.layout, benchmark)
        for (kind, message_bytes, elements), axes in itertools.product(
            messages, _axes(settings, benchmark, pair_texts)
        ):
            if settings.sizes_to_memory and message_bytes > most_bytes:
                continue
            # one buffer for all messages of a window is meant to be used again
            usual_cache = "warm" if axes["buffers"] == "shared" else benchmark.cache
            if axes["registration"] != "none":  # a graph must not replay one buffer (nccl#1924)
                usual_cache = "rotate"
            case = Case(
                benchmark=benchmark.name,
                backend=settings.backend.name,
                timing=settings.timing.name,
                sync=_sync(settings, benchmark, schedule, axes["timer"]),
                device=settings.device,
                dtype=kind,
                layout=str(self.place.layout),
                message_bytes=message_bytes,
                elements=elements,
                schedule=schedule,
                cache=usual_cache if settings.cache == "auto" else settings.cache,
                cuda_ipc=settings.cuda_ipc,
                interface=settings.interface,
                env=settings.recorded_env,
                bind=settings.bind,
                backend_options=settings.backend.options,
                **axes | {"window": _window(axes["window"], message_bytes, axes["buffers"])},
            )
            variants = benchmark.variants(case, self.place.layout.size)
            for each in itertools.chain.from_iterable(map(cases_of, variants)):
                on_host = settings.device == "cpu"
                yield each if on_host else replace(each, staging=self._staging(each))

    def _staging(self, case: Case) -> Staging:
        """Of a case on a GPU; `auto` is that of its program, which needs possible variables."""
        settings = self.settings
        if settings.staging != "auto":
            return settings.staging
        if self.place.misfit or _impossible(settings, self.place.layout, self.benchmark, case):
            return "none"
        return settings.backend.staging(self._program(case))

    def _program(self, case: Case) -> Program:
        """The program of the first rank of a case, or of one that differs in its pair only: of
        thousands of ranks with pairs there are millions."""
        if not case.pairs:
            return self._program_of(case, 0)
        rank, peer = case.pairs[0]
        key = (replace(case, pair=None), rank == peer)
        if key not in self._paired_programs:
            self._paired_programs[key] = self._program_of(case, rank)
        return self._paired_programs[key]

    def _program_of(self, case: Case, rank: int) -> Program:
        benchmark = around(self.benchmark, case, self.settings.backend)
        return benchmark.program(case, rank, self.place.layout.size)

    def planned(self, case: Case) -> Planned:
        settings = self.settings
        place = self.place
        benchmark = around(self.benchmark, case, settings.backend)
        reason = place.misfit or _impossible(settings, place.layout, benchmark, case)
        reason = reason or self._unsupported(case)
        planned = Planned(0, case, benchmark, place.members, 1, 0, reason)
        return planned if reason else self._with_memory(planned)

    def _unsupported(self, case: Case) -> str | None:
        backend = self.settings.backend
        program = self._program(case)
        return program.own_refusal(backend) or backend.supports(
            case, self.place.layout.size, program
        )

    def _with_memory(self, planned: Planned) -> Planned:
        """The case with its copies and its memory, and the reason where that is too much."""
        settings = self.settings
        facts = self.facts
        case = planned.case
        specs = self._buffers(planned)
        # by identity: thousands of ranks with pairs share two objects
        kinds = {id(own): own for own in specs.values()}
        pool = _pool(case, kinds.values(), facts)
        computed_bytes = planned.benchmark.computed_bytes(case)
        bytes_of = {
            kind: computed_bytes + sum(_host_bytes(case, spec, pool) for spec in own)
            for kind, own in kinds.items()
        }
        node_bytes = self._node_bytes({rank: bytes_of[id(own)] for rank, own in specs.items()})
        reason = _too_large(settings, "a node", node_bytes, facts.memory_bytes)
        if case.device == "cuda" and reason is None and facts.gpu_bytes is not None:
            gpu_bytes = max(
                sum(buffer_bytes(spec, pool) for spec in own if spec.memory == DEVICE)
                for own in kinds.values()
            )
            ranks = -(-self.place.layout.ranks_per_node // facts.gpus)
            reason = _too_large(settings, "a GPU", ranks * gpu_bytes, facts.gpu_bytes)
        return replace(planned, pool=pool, node_bytes=node_bytes, skip=reason)

    def _node_bytes(self, rank_bytes: Mapping[int, int]) -> int:
        """The host memory of the fullest node. A simulated world has all its nodes in one
        process."""
        if self.settings.backend.hosts_ranks:
            return CONTROL_BYTES + sum(rank_bytes.values())
        by_node = [CONTROL_BYTES * processes for processes in self.place.processes]
        for rank, own_bytes in rank_bytes.items():
            by_node[self.place.nodes[rank]] += own_bytes
        return max(by_node)

    def _buffers(self, planned: Planned) -> dict[int, tuple[BufferSpec, ...]]:
        """The buffers of each active rank. With pairs those of two ranks are enough: they depend on
        the position of a rank in its pair."""
        case = planned.case
        if not case.pairs:
            return {rank: _with_twins(planned, rank) for rank in planned.active}
        of_positions = self._paired_buffers.setdefault(replace(case, pair=None), {})
        specs = {}
        for pair in case.pairs:
            for rank in pair:
                position = (rank == pair[0], rank == pair[1])
                if position not in of_positions:
                    of_positions[position] = _with_twins(planned, rank)
                specs[rank] = of_positions[position]
        return specs


# ---------------------------------------------------------------- what a case is


def _messages(
    settings: Settings, layout: Layout, benchmark: Benchmark
) -> Iterator[tuple[str, int, int]]:
    """dtype, bytes and elements per block of each message; a single empty one if the operation has
    no message."""
    blocks = benchmark.blocks(layout.size)
    if blocks == 0:
        yield NO_DTYPE, 0, 0
        return
    for kind, sizes in zip(settings.dtypes, settings.sizes, strict=True):
        for size_bytes in _sizes_of(settings, benchmark, sizes):
            message_bytes = size_bytes * (blocks if settings.sizes_per == "rank" else 1)
            count = message_bytes // dtype(kind).itemsize // blocks
            yield kind, count * blocks * dtype(kind).itemsize or message_bytes, count


def _sizes_of(settings: Settings, benchmark: Benchmark, sizes: Sequence[int]) -> Sequence[int]:
    """A search needs one size of each operation: the largest for a bandwidth, the smallest for a
    latency."""
    if settings.pairs != SEARCH or not sizes:
        return sizes
    return (max(sizes) if "window" in benchmark.axes else min(sizes),)


def _axes(
    settings: Settings, benchmark: Benchmark, pair_texts: Sequence[str | None]
) -> Iterator[dict[str, Any]]:
    """Values of the pair and of each axis, by field of the case; None where it does not apply to
    the operation."""
    usual: dict[tuple[str, Any], Any] = {
        # only the Python engine enqueues work on a GPU
        ("engine", "auto"): settings.backend.engines[0] if settings.device == "cpu" else "python",
        ("in_place", None): benchmark.blocks(2) == 1,
    }
    if "window" not in benchmark.axes:
        usual["buffers", "own"] = None  # no choice that its case names
    values: dict[str, Sequence[Any]] = {"pair": pair_texts}
    for name, chosen in settings.axes.items():
        values[name] = (None,)
        if _applies(settings, benchmark, name):
            values[name] = [usual.get((name, value), value) for value in chosen]
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def _applies(settings: Settings, benchmark: Benchmark, name: str) -> bool:
    """Whether a variable is one of an operation with this backend."""
    applies_to = BY_NAME[name].applies_to
    if applies_to == "operation":
        return name in benchmark.axes
    if applies_to == "pairs" and not {"pair", "pairs"} & set(benchmark.axes):
        return False
    return applies_to == "all" or name in settings.backend.axes


def _pairs_at_once(settings: Settings, layout: Layout, benchmark: Benchmark) -> list[list[Pair]]:
    """The pairs of each case: one, those of a round, or all that run at once; none without."""
    listed = [] if isinstance(settings.pairs, str) else list(settings.pairs)
    if "pairs" in benchmark.axes:
        # those listed, else rank i of the first half with rank i of the second (osu_mbw_mr)
        half = layout.size // 2
        return [listed or [(rank, rank + half) for rank in range(half)]]
    if "pair" not in benchmark.axes:
        return [[]]
    if settings.pairs == SEARCH:
        known = pair_search().first_pairs(layout, settings.seed)
        return [pairs for each in known for pairs in _directions(each, benchmark)] or [[]]
    if settings.pairs == "all":
        listed = all_pairs(layout.size)
    elif settings.pairs == "neighbours":
        listed = [(rank, rank + 1) for rank in range(layout.size - 1)]
    groups = rounds(listed) if settings.schedule == "rounds" else [[pair] for pair in listed]
    return groups or [[]]


def _directions(pairs: Sequence[Pair], benchmark: Benchmark) -> list[list[Pair]]:
    """These pairs, and the same the other way for an operation that sends in one direction."""
    forth = list(pairs)
    back = [(second, first) for first, second in pairs]
    return [forth, back] if "window" in benchmark.axes else [forth]


def _sync(
    settings: Settings, benchmark: Benchmark, schedule: Schedule | None, timer: TimerName
) -> Sync:
    """Before events are recorded, each rank holds its GPU for as long as its own host needs, so a
    barrier must follow."""
    if timer in EVENT_TIMED:
        return "barrier"
    return "none" if benchmark.self_synchronising and schedule != "rounds" else settings.sync


def _window(window: object, message_bytes: int, buffers: object) -> int | None:
    """Fewer messages in flight if they would exceed the cap, but never less than two."""
    if not isinstance(window, int):
        return None
    if buffers == "shared":
        return window
    return min(window, max(LEAST_WINDOW, WINDOW_CAP_BYTES // max(message_bytes, 1)))


# ---------------------------------------------------------------- why it is not measured


def _impossible(settings: Settings, layout: Layout, benchmark: Benchmark, case: Case) -> str | None:
    if layout.size < benchmark.min_ranks:
        return (
            f"{benchmark.name} needs {benchmark.min_ranks} ranks, layout {layout} has {layout.size}"
        )
    if case.pair is None and {"pair", "pairs"} & set(benchmark.axes):
        return (
            f"{benchmark.name} needs 2 ranks, layout {layout} has 1; a rank with itself:"
            " pairs=[[0,0]]"
        )
    if case.elements == 0 and benchmark.blocks(layout.size):
        return f"{case.message_bytes} B of {case.dtype} can't be divided among {layout.size} ranks"
    stray = [rank for pair in case.pairs for rank in pair if rank >= layout.size]
    if stray:
        return (
            f"pair {case.pair} needs rank {max(stray)}, layout {layout} has ranks 0 to"
            f" {layout.size - 1}"
        )
    together = [rank for pair in case.pairs for rank in set(pair)]
    if len(together) > len(set(together)):
        return f"pairs {case.pair} run at once, but share a rank"
    if case.root is not None and case.root >= layout.size:
        return f"root {case.root} is not in layout {layout}, which has ranks 0 to {layout.size - 1}"
    if "staging" in benchmark.axes and "staging" not in settings.backend.axes:
        return (
            f"{case.backend} sends messages between ranks; it does not measure copies between host"
            " and device"
        )
    if case.registration != "none" and "registration" not in settings.backend.axes:
        return f"{case.backend} can't register its buffers; use registration=none or backend=nccl"
    if case.device not in settings.backend.devices:
        return f"{case.backend} does not run on {case.device}"
    if case.engine not in settings.backend.engines:
        return (
            f"{case.backend} has no {case.engine} engine; it has:"
            f" {', '.join(settings.backend.engines)}"
        )
    return benchmark.refusal(case, layout.size)


def _too_large(settings: Settings, where: str, needed: int, free: int) -> str | None:
    share = settings.budget.memory_share
    if needed <= int(free * share):
        return None
    return (
        f"needs {about_bytes(needed)} on {where}, allowed are {about_bytes(free * share)}"
        f" (budget.memory_share={share} of the {about_bytes(free)} that were free at the start)"
    )


# ---------------------------------------------------------------- its memory


def _pool(case: Case, buffers: Iterable[tuple[BufferSpec, ...]], facts: PlanFacts) -> int:
    """How many copies are needed to rotate through twice the cache (method: Intel MPI Benchmarks'
    -off_cache)."""
    everything = [spec for own in buffers for spec in own]
    if case.cache != "rotate" or not everything:
        return 1
    largest = max(everything, key=lambda spec: buffer_bytes(spec, 1))
    one_copy = buffer_bytes(largest, 1)
    wanted = -(-2 * max(facts.cache_bytes, case.message_bytes) // one_copy)
    return max(
        1,
        min(
            wanted,
            ROTATION_CAP_BYTES[case.device] // one_copy,
            ROTATION_CAP_VIEWS // largest.slots,
            # a graph has a call for each copy
            BATCH_K if case.timer == "graph" else wanted,
        ),
    )


def _with_twins(planned: Planned, rank: int) -> tuple[BufferSpec, ...]:
    """The buffers of a rank, also those on the host through which commbench or the library sends
    GPU memory."""
    case = planned.case
    specs = planned.buffers(rank)
    if not specs or case.staging not in ("pinned", "library"):
        return specs
    program = planned.benchmark.program(case, rank, planned.size)
    return staged_program(program, rank).buffers


def _host_bytes(case: Case, spec: BufferSpec, pool: int) -> int:
    on_host = case.device == "cpu" or spec.memory != DEVICE
    return buffer_bytes(spec, pool) if on_host else host_bytes(spec, pool)
