"""The operations of a workload as steps of the benchmarks of their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from commbench.benchmarks.all_gather import AllGather
from commbench.benchmarks.all_reduce import AllReduce
from commbench.benchmarks.barrier import Barrier
from commbench.benchmarks.broadcast import Broadcast
from commbench.benchmarks.collective import DATA, SOURCE, Collective
from commbench.benchmarks.gather import Gather
from commbench.benchmarks.placed_operations import IN_PLACE, placed_operation
from commbench.benchmarks.reduce import Reduce
from commbench.core.payload import DTYPES, SHARED, message
from commbench.core.program import (
    BufferSpec,
    Copy,
    In,
    Operation,
    Pattern,
    Program,
    Recv,
    Send,
    View,
)
from commbench.core.variables import Case, Device, ReductionName
from commbench_replay.operations import ITEM_BYTES, REDUCING
from commbench_replay.streamed_operations import (
    StreamedAllToAll,
    StreamedAllToAllV,
    StreamedReduceScatter,
    StreamedScatter,
)
from commbench_replay.workload import SEND_RECV, WorkloadOperation

# of reductions: repeated in place, a sum would grow with each call of a sample
REPEATABLE: ReductionName = "max"
# types that no buffer has, as bytes that are moved unseen
STAND_IN = {1: "uint8", 2: "bfloat16", 4: "int32", 8: "int64", 16: "int64"}


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


BENCHMARKS: Mapping[str, Collective] = {
    each.name: each
    for each in (
        AllReduce(), AllGather(), StreamedReduceScatter(), StreamedAllToAll(), Broadcast(),
        Reduce(), Gather(), StreamedScatter(), Barrier(), Transfer(),
    )
}  # fmt: skip


@dataclass(frozen=True)
class MemoryKind:
    """Buffers with the same name of their kind can be parts of one memory, but of those that are
    written only such as no two calls need at once."""

    name: str
    is_written: bool


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
        benchmark = BENCHMARKS.get(name) or StreamedAllToAllV(operation.counts or ())
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

    def step(self, rank: int, names: Mapping[str, str], layout_ranks: int) -> Operation | In:
        """The step of a call in memories of these names, in a group where that is not the whole
        layout. Messages need none."""
        program = self._program(rank)
        (step,) = program.steps
        placed: Operation = self._placed(step, program, names)
        if not self.needs_group or len(self.ranks) == layout_ranks:
            return placed
        return In(self.ranks, placed)

    def reset(self, rank: int, names: Mapping[str, str]) -> Iterator[Copy]:
        """What gives a call in place its input."""
        program = self._program(rank)
        for step in program.reset:
            yield self._placed(step, program, names)

    def memory_kinds(self, rank: int) -> Iterator[tuple[BufferSpec, MemoryKind]]:
        """The buffers of a call of that rank. Inputs of a benchmark are parts of the same stream,
        if the rank has the same place in groups of the same size. In place, the elements behind
        the result are still the input, so another benchmark must not have written to them."""
        case = self.case
        program = self._program(rank)
        kept = {step.target.buffer for step in program.reset if isinstance(step, Copy)}
        inputs = f"{case.benchmark}.{case.dtype}.{self.place(rank)}/{self.size}.{case.root}"
        for spec in program.buffers:
            if spec.name in kept:
                ranks = "-".join(map(str, self.ranks))
                name = f"{case.benchmark}.{case.dtype}.{ranks}.{case.root}.{spec.name}"
                yield spec, MemoryKind(name, is_written=True)
            elif spec.name == SOURCE.buffer or self.fill(rank, spec.name, salt=0) is not None:
                yield spec, MemoryKind(f"{inputs}.{spec.name}", is_written=False)
            else:
                yield spec, MemoryKind(case.dtype, is_written=True)

    def moved_bytes(self, rank: int) -> int:
        """What the rank sends or receives in a call, the larger of both."""
        if rank not in self.ranks:
            return 0
        specs = self.benchmark.buffers(self.case, self.place(rank), self.size)
        return max((spec.count * ITEM_BYTES[spec.dtype] for spec in specs), default=0)

    @property
    def busiest_bytes(self) -> int:
        return max(map(self.moved_bytes, self.ranks))

    def fill(self, rank: int, buffer: str, salt: int) -> Pattern | None:
        return self.benchmark.fill(self.case, self.place(rank), self.size, buffer, salt)

    def expected(self, rank: int, buffer: str, salt: int) -> Pattern | None:
        return self.benchmark.expected(self.case, self.place(rank), self.size, buffer, salt)

    def _program(self, rank: int) -> Program:
        return self.benchmark.program(self.case, self.place(rank), self.size)

    def _placed(self, step: Any, program: Program, names: Mapping[str, str]) -> Any:
        """The step with its views at the beginning of these memories."""
        specs = {spec.name: spec for spec in program.buffers}

        def placed_view(view: View) -> View:
            if view.buffer not in specs:  # of an operation that other ranks alone use it in
                return view
            return replace(view, buffer=names[view.buffer], count=view.count_in(specs[view.buffer]))

        return placed_operation(step, placed_view, self.ranks)


def _buffer_dtype(name: str | None) -> str:
    if name is None:
        return STAND_IN[1]
    is_known = name in DTYPES and not DTYPES[name].is_float8  # few libraries reduce that
    return name if is_known else STAND_IN[ITEM_BYTES[name]]


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
