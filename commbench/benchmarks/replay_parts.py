"""The operations of a workload as programs of the benchmarks of their names, each with buffers of
its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from commbench.core.payload import DTYPES, SHARED, message
from commbench.core.program import (
    BufferSpec,
    In,
    Operation,
    Pattern,
    Program,
    Recv,
    Send,
    View,
)
from commbench.core.variables import Case, Device, ReductionName
from commbench.workloads.operations import ITEM_BYTES, REDUCING
from commbench.workloads.workload import SEND_RECV, WorkloadOperation

from .all_gather import AllGather
from .all_reduce import AllReduce
from .all_to_all import AllToAll
from .all_to_all_v import UnevenAllToAll
from .barrier import Barrier
from .broadcast import Broadcast
from .collective import DATA, Collective
from .expert_traffic import TrafficMatrix
from .gather import Gather
from .reduce import Reduce
from .reduce_scatter import ReduceScatter
from .scatter import Scatter

# of reductions: repeated in place, a sum would grow with each call of a sample
REPEATABLE: ReductionName = "max"
# types that no buffer has, as bytes that are moved unseen
STAND_IN = {1: "uint8", 2: "bfloat16", 4: "int32", 8: "int64", 16: "int64"}
IN_PLACE = ("all_reduce", "reduce")  # the only form that all libraries have
BETWEEN = "."  # the number of an operation and the name of its buffer


class Transfer(Collective):
    """A message from the first of two ranks to the second."""

    name = SEND_RECV

    def program(self, case: Case, rank: int, size: int) -> Program:
        step = Send(DATA, 1) if rank == 0 else Recv(DATA, 0)
        return Program((BufferSpec("data", case.elements, case.dtype),), (step,))

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.result(case, rank, size, salt) if rank == 0 else None

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern:
        return message(SHARED, salt, case.elements)


@dataclass(frozen=True)
class CountedAllToAll(UnevenAllToAll):
    """`counts`: elements from each rank to each."""

    counts: tuple[tuple[int, ...], ...]

    def matrix(self, case: Case, size: int) -> TrafficMatrix:
        return np.array(self.counts, dtype=np.int64)


BENCHMARKS: Mapping[str, Collective] = {
    each.name: each
    for each in (
        AllReduce(), AllGather(), ReduceScatter(), AllToAll(), Broadcast(), Reduce(), Gather(),
        Scatter(), Barrier(), Transfer(),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Operation `number` of a workload; `ranks` are those of the layout that it runs on."""

    number: int
    ranks: tuple[int, ...]
    benchmark: Collective
    case: Case

    @classmethod
    def of(
        cls, number: int, operation: WorkloadOperation, group: tuple[int, ...], device: Device
    ) -> Part:
        name = operation.operation
        ranks = group
        if operation.peers is not None:
            ranks = tuple(group[peer] for peer in operation.peers)
        benchmark = BENCHMARKS.get(name) or CountedAllToAll(operation.counts or ())
        case = Case(
            benchmark=name,
            backend="",
            layout="",
            engine="python",
            message_bytes=0,
            cache="warm",
            sync="none",
            timing="",
            device=device,
            dtype=_buffer_dtype(operation.dtype),
            elements=_elements(operation, len(ranks)),
            in_place=name in IN_PLACE if "in_place" in benchmark.axes else None,
            reduction=REPEATABLE if name in REDUCING else None,
            root=(operation.root or 0) if "root" in benchmark.axes else None,
        )
        return cls(number, ranks, benchmark, case)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def needs_group(self) -> bool:
        return self.case.benchmark != SEND_RECV

    def place(self, rank: int) -> int:
        """The position of a rank of the layout in the group."""
        return self.ranks.index(rank)

    def program(self, rank: int, slots: int) -> Program:
        """Of a rank of the layout; its buffers have so many slots, for calls at the same time."""
        own = self.benchmark.program(self.case, self.place(rank), self.size)
        buffers = tuple(
            replace(spec, name=self._named(spec.name), slots=slots) for spec in own.buffers
        )
        reset = tuple(self._placed(step, slot) for slot in range(slots) for step in own.reset)
        return Program(buffers, own.steps, reset)

    def step(self, rank: int, slot: int, layout_ranks: int) -> Operation | In:
        """The step of a call, in a group where that is not the whole layout. Messages need none."""
        (step,) = self.benchmark.program(self.case, self.place(rank), self.size).steps
        placed: Operation = self._placed(step, slot)
        if not self.needs_group or len(self.ranks) == layout_ranks:
            return placed
        return In(self.ranks, placed)

    def moved_bytes(self, rank: int) -> int:
        """What the rank sends or receives in a call, the larger of both."""
        if rank not in self.ranks:
            return 0
        specs = self.benchmark.buffers(self.case, self.place(rank), self.size)
        return max((spec.count * ITEM_BYTES[spec.dtype] for spec in specs), default=0)

    @property
    def busiest_bytes(self) -> int:
        return max(map(self.moved_bytes, self.ranks))

    def fill(self, rank: int, name: str, slots: int, salt: int) -> Pattern | None:
        pattern = self.benchmark.fill(self.case, self.place(rank), self.size, name, salt)
        return None if pattern is None else _in_all_slots(pattern, slots)

    def expected(self, rank: int, name: str, slots: int, salt: int) -> Pattern | None:
        pattern = self.benchmark.expected(self.case, self.place(rank), self.size, name, salt)
        return None if pattern is None else _in_all_slots(pattern, slots)

    def _named(self, buffer: str) -> str:
        return f"{self.number}{BETWEEN}{buffer}"

    def _placed(self, step: Any, slot: int) -> Any:
        """The step with its views in this operation's buffers."""

        def placed_view(view: View) -> View:
            return replace(view, buffer=self._named(view.buffer), slot=slot)

        return placed_operation(step, placed_view, self.ranks)


def placed_operation(step: Any, placed_view: Callable[[View], View], ranks: Sequence[int]) -> Any:
    """The operation with other views, of the group of these ranks of the layout. Messages need no
    group, so their peers become ranks of the layout."""
    values = {field.name: getattr(step, field.name) for field in fields(step)}
    views = {name: placed_view(view) for name, view in values.items() if isinstance(view, View)}
    if isinstance(step, Send | Recv):
        return replace(step, peer=ranks[step.peer], **views)
    return replace(step, **views)


def part_and_buffer(name: str) -> tuple[int, str]:
    """The number of the operation and the name that its benchmark gives to a buffer."""
    number, _, buffer = name.partition(BETWEEN)
    return int(number), buffer


def _in_all_slots(pattern: Pattern, slots: int) -> Pattern:
    return replace(pattern, segments=pattern.segments * slots)


def _buffer_dtype(name: str | None) -> str:
    if name is None:
        return STAND_IN[1]
    return name if name in DTYPES else STAND_IN[ITEM_BYTES[name]]


def _elements(operation: WorkloadOperation, ranks: int) -> int:
    """The elements of one block, as Case.elements of the benchmark has them."""
    item_bytes = ITEM_BYTES[_buffer_dtype(operation.dtype)]
    input_bytes = max(operation.input_bytes)
    output_bytes = max(operation.output_bytes)
    if operation.operation in ("reduce_scatter", "scatter"):
        return output_bytes // item_bytes
    if operation.operation == "all_to_all":
        return input_bytes // ranks // item_bytes
    return input_bytes // item_bytes
