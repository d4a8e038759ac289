"""Operations of several groups of ranks at once, each of them alone, and a latency under load;
copies between host and device beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from commbench.benchmarks.all_gather import AllGather
from commbench.benchmarks.all_reduce import AllReduce
from commbench.benchmarks.all_to_all import AllToAll
from commbench.benchmarks.broadcast import Broadcast
from commbench.benchmarks.memory_copy import CopyD2H, CopyH2D
from commbench.benchmarks.p2p_bandwidth import P2PBandwidth
from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.benchmarks.placed_operations import IN_PLACE, placed_operation
from commbench.benchmarks.reduce_scatter import ReduceScatter
from commbench.core.case import Benchmark, Shape
from commbench.core.payload import dtype
from commbench.core.program import (
    Copy,
    Group,
    In,
    Pattern,
    Program,
    Start,
    Step,
    View,
    WaitAll,
    begun_and_rest,
    operation_of,
)
from commbench.core.protocols import Backend
from commbench.core.variables import Case

from .operations import (
    COPIES,
    DEFAULT_GROUPS,
    PAIRED,
    GroupEntry,
    GroupOperations,
    parse_group_operations,
)

GROUP_BENCHMARKS: Mapping[str, Benchmark] = {
    each.name: each
    for each in (
        AllReduce(), AllGather(), ReduceScatter(), AllToAll(), Broadcast(), P2PLatency(),
        P2PBandwidth(), CopyH2D(), CopyD2H(),
    )
}  # fmt: skip
WINDOW = 16  # messages of p2p_bandwidth
MOST_REQUESTS = 2 * WINDOW  # of one operation


@dataclass(frozen=True)
class GroupPart:
    """Operation `number` on one group; `ranks` are those of the layout."""

    number: int
    ranks: Group
    benchmark: Benchmark
    case: Case

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def is_paired(self) -> bool:
        return self.case.benchmark in PAIRED

    @property
    def can_begin(self) -> bool:
        """Whether it can be started, and waited for later."""
        steps = self.benchmark.program(self.case, 0, self.size).steps
        return begun_and_rest(steps) is not None

    def needs_group(self, layout_ranks: int) -> bool:
        """Whether its steps are of a group; messages and copies need none."""
        is_collective = self.case.benchmark not in (*PAIRED, *COPIES)
        return is_collective and self.size < layout_ranks

    def program(self, rank: int, layout_ranks: int) -> Program:
        """The program of a rank of the layout, with its own names of buffers and requests."""
        own = self.benchmark.program(self.case, self.ranks.index(rank), self.size)
        return Program(
            tuple(replace(spec, name=self._named(spec.name)) for spec in own.buffers),
            tuple(self._placed(step, layout_ranks) for step in own.steps),
            tuple(self._placed(step, layout_ranks) for step in own.reset),
        )

    def _placed(self, step: Step, layout_ranks: int) -> Step:
        if isinstance(step, WaitAll):
            return WaitAll(tuple(map(self._request, step.requests)))
        operation = placed_operation(operation_of(step), self._placed_view, self.ranks)
        in_group = self.needs_group(layout_ranks) and not isinstance(operation, Copy)
        placed = In(self.ranks, operation) if in_group else operation
        return Start(placed, self._request(step.request)) if isinstance(step, Start) else placed

    def _placed_view(self, view: View) -> View:
        return replace(view, buffer=self._named(view.buffer))

    def _request(self, request: int) -> int:
        return self.number * MOST_REQUESTS + request

    def _named(self, buffer: str) -> str:
        return f"{self.number}.{buffer}"

    def fill(self, rank: int, buffer: str, salt: int) -> Pattern | None:
        place = self.ranks.index(rank)
        return self.benchmark.fill(self.case, place, self.size, buffer, salt)

    def expected(self, rank: int, buffer: str, salt: int) -> Pattern | None:
        place = self.ranks.index(rank)
        return self.benchmark.expected(self.case, place, self.size, buffer, salt)


@dataclass(frozen=True)
class Concurrent(Benchmark):
    """Once in a sample, all ranks of an operation begin it at the same time."""

    name = "concurrent"
    axes = ("groups",)
    cache = "warm"
    min_ranks = 2
    self_synchronising = False

    def blocks(self, size: int) -> int:
        return 1

    def variants(self, case: Case, size: int) -> Iterator[Case]:
        """Under a load ranks do not meet between repetitions, also without it."""
        for each in operations_of(case).variants():
            sync = "none" if each.free else case.sync
            yield replace(case, groups=each.text, sync=sync)

    def refusal(self, case: Case, size: int) -> str | None:
        operations = operations_of(case)
        reasons = (_entry_refusal(entry, case, size) for entry in operations.entries)
        reason = next(filter(None, reasons), None)
        if reason is not None:
            return reason
        for parts in _shared_ranks(case, size):
            if operations.free or not all(part.can_begin for part in parts):
                return (
                    f"groups={case.groups} has a rank in two operations, one of which waits for"
                    " each message, or is timed under load; give them different ranks"
                )
            if case.timer == "graph" and operations.timed is not None:
                return (
                    f"a graph ends with all that it has begun, so {case.groups} has no time of its"
                    " own; use timer=device_event"
                )
        return None

    def active(self, case: Case, size: int) -> Sequence[int]:
        return sorted(_parts_by_rank(case, size))

    def groups(self, case: Case, size: int) -> Sequence[Group]:
        parts = (part for parts in _parts_by_rank(case, size).values() for part in parts)
        return sorted({part.ranks for part in parts if part.needs_group(size)})

    def program(self, case: Case, rank: int, size: int) -> Program:
        parts = _parts_by_rank(case, size).get(rank, ())
        timed = operations_of(case).timed
        own = [part.program(rank, size) for part in parts]
        begun: list[Step] = []
        rests: dict[int, tuple[Step, ...]] = {}
        for part, program in zip(parts, own, strict=True):
            split = begun_and_rest(program.steps, part.number * MOST_REQUESTS)
            started, rests[part.number] = ((), program.steps) if split is None else split
            begun += started
        is_timed = timed in rests and len(rests) > 1
        ended = [number for number in rests if not is_timed or number == timed]
        later = [number for number in rests if number not in ended]
        return Program(
            tuple(spec for program in own for spec in program.buffers),
            (*begun, *(step for number in ended for step in rests[number])),
            tuple(step for program in own for step in program.reset),
            after=tuple(step for number in later for step in rests[number]),
        )

    def shape(self, case: Case, size: int) -> Shape:
        """Of the timed operation, on its own ranks; of a message, those that begin it."""
        timed = operations_of(case).timed
        if timed is None:
            return Shape(1, 0, "max_over_ranks", "all operations until the end of the last")
        parts = _parts_of(case, size)[timed]
        first = parts[0]
        counted = [part.ranks[:1] if first.is_paired else part.ranks for part in parts]
        return replace(
            first.benchmark.shape(first.case, first.size),
            headline="max_over_ranks",
            ranks=tuple(rank for ranks in counted for rank in ranks),
        )

    def bus_factor(self, case: Case, size: int) -> float | None:
        """None: groups share links, so there is no rate of one."""
        return None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        part, buffer = _part_of_buffer(case, rank, size, name)
        return part.fill(rank, buffer, salt)

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        part, buffer = _part_of_buffer(case, rank, size, name)
        return part.expected(rank, buffer, salt)


@dataclass(frozen=True)
class ConcurrentOn(Concurrent):
    """The same on a backend, which may lack a part of it."""

    backend: Backend

    def refusal(self, case: Case, size: int) -> str | None:
        return super().refusal(case, size) or self._refusal_of_backend(case, size)

    def _refusal_of_backend(self, case: Case, size: int) -> str | None:
        name = self.backend.name
        has_copies = any(entry.is_copy for entry in operations_of(case).entries)
        if has_copies and not self.backend.starts_copies:
            return f"{name} can't copy to or from a GPU beside its operations; use backend=nccl"
        shared = chain.from_iterable(_shared_ranks(case, size))
        if self.backend.joins_messages and any(part.is_paired for part in shared):
            return (
                f"{name} sends messages in the wait for them, so no other operation of a rank is at"
                " the same time; give them different ranks"
            )
        return None


def operations_of(case: Case) -> GroupOperations:
    return parse_group_operations(case.groups or DEFAULT_GROUPS)


def _entry_refusal(entry: GroupEntry, case: Case, size: int) -> str | None:
    """Why an operation does not fit the layout, by itself."""
    groups = entry.groups(size)
    if not groups:
        return f"{entry.text} has no group with two ranks in a layout of {size}"
    last = max(max(group) for group in groups)
    if last >= size:
        return f"{entry.text} names rank {last}, the layout has ranks 0 to {size - 1}"
    if entry.operation in PAIRED and any(len(group) != 2 for group in groups):
        return f"{entry.text} needs groups of two ranks, such as tp2 or 0-1"
    if any(_part_case(entry, case, len(group)).elements == 0 for group in groups):
        return f"{entry.text}: a message can't be divided among the ranks of a group"
    return None


def _part_case(entry: GroupEntry, case: Case, group_ranks: int) -> Case:
    """The case of an operation, as its own benchmark would have it. A copy of pageable memory would
    block the host, and nothing could go on beside it."""
    benchmark = GROUP_BENCHMARKS[entry.operation]
    wanted_bytes = case.message_bytes if entry.size_bytes is None else entry.size_bytes
    item_bytes = dtype(case.dtype).itemsize
    blocks = benchmark.blocks(group_ranks)
    elements = wanted_bytes // blocks // item_bytes
    is_paired = entry.operation in PAIRED
    return replace(
        case,
        benchmark=entry.operation,
        groups=None,
        elements=elements,
        message_bytes=elements * blocks * item_bytes,
        pair="0-1" if is_paired else None,
        window=WINDOW if "window" in benchmark.axes else None,
        in_place=entry.operation in IN_PLACE if "in_place" in benchmark.axes else None,
        reduction="sum" if "reduction" in benchmark.axes else None,
        root=0 if "root" in benchmark.axes else None,
        staging="pinned" if entry.is_copy else case.staging,
    )


def _parts_of(case: Case, size: int) -> Sequence[Sequence[GroupPart]]:
    """By entry, one for each of its groups."""
    return _cached_parts(replace(case, sync="none", library=None), size)


@lru_cache(maxsize=64)
def _cached_parts(case: Case, size: int) -> Sequence[Sequence[GroupPart]]:
    return [
        [
            GroupPart(
                number,
                group,
                GROUP_BENCHMARKS[entry.operation],
                _part_case(entry, case, len(group)),
            )
            for group in entry.groups(size)
        ]
        for number, entry in enumerate(operations_of(case).entries)
    ]


def _parts_by_rank(case: Case, size: int) -> dict[int, list[GroupPart]]:
    """What each rank takes part in, in the order of the entries."""
    by_rank: dict[int, list[GroupPart]] = {}
    for parts in _parts_of(case, size):
        for part in parts:
            for rank in part.ranks:
                by_rank.setdefault(rank, []).append(part)
    return by_rank


def _shared_ranks(case: Case, size: int) -> list[list[GroupPart]]:
    """The operations of each rank that takes part in several."""
    return [parts for parts in _parts_by_rank(case, size).values() if len(parts) > 1]


def _part_of_buffer(case: Case, rank: int, size: int, name: str) -> tuple[GroupPart, str]:
    """The operation that a buffer of a rank belongs to, and the name that it gives it."""
    number, _, buffer = name.partition(".")
    parts = _parts_by_rank(case, size)[rank]
    return next(part for part in parts if part.number == int(number)), buffer
