"""The communication of a recorded or generated job: its operations in their order, groups and
concurrency, and each kind of operation alone."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from commbench.benchmarks.all_to_all_v import TrafficMatrix
from commbench.core.case import Benchmark, Shape
from commbench.core.errors import ConfigError
from commbench.core.payload import dtype
from commbench.core.program import (
    BufferSpec,
    Group,
    In,
    MatmulFor,
    Operation,
    Pattern,
    Program,
    Sleep,
    Start,
    Step,
    WaitAll,
)
from commbench.core.variables import Cache, Case, Device, Splits

from .memory import RankMemory, rank_memory
from .named_workload import alone_text, operation_number, recorded_name, source_of
from .parts import Part
from .scaling import ScaledWorkload, scaled
from .workload import WorkloadCall, first_alike, runs_beside_next

LATE = re.compile(r"(?P<rank>\d{1,7}):(?P<number>\d{1,9})(?P<unit>us|ms)")
MATRIX_SIZE = 128  # of the computation in a gap: three of them stay in a core's cache


@dataclass(frozen=True)
class Replay(Benchmark):
    """`workload` is the path of a file that `commbench replay --export` has written, or a generator
    with its numbers, like `fsdp params=1e9 layers=8`, for the ranks of the layout."""

    workload: str = "ddp params=1e6 dtype=float32"
    name: ClassVar[str] = "replay"
    axes: ClassVar[tuple[str, ...]] = ("workload", "gaps", "late", "splits")
    cache: ClassVar[Cache] = "warm"
    min_ranks: ClassVar[int] = 2
    self_synchronising: ClassVar[bool] = False

    def recorded_inputs(self) -> str:
        """The workload as results name it: a file with the digest of its content. Raises
        ConfigError."""
        return recorded_name(self.workload)

    def blocks(self, size: int) -> int:
        """0: the workload decides the sizes of its messages."""
        return 0

    def variants(self, case: Case, size: int) -> Iterator[Case]:
        """The sequence of all operations, and one operation of each signature alone, which has its
        type and size, and neither gaps nor a late rank."""
        if size < self.min_ranks:  # the plan refuses it
            yield replace(case, workload=self.recorded_inputs())
            return
        source = source_of(self.workload, size)
        yield replace(case, workload=source.text)
        if case.gaps not in (None, "none") or case.late is not None:
            return
        for number in sorted(set(first_alike(source.workload).values())):
            name = alone_text(source.text, number, source.workload.operations[number])
            alone = replace(case, workload=name, gaps=None)
            part = self._parts(alone, size).get(number)
            if part is None:
                yield alone
                continue
            elements = part.case.elements
            block_bytes = elements * dtype(part.case.dtype).itemsize
            yield replace(
                alone,
                dtype=part.case.dtype,
                elements=elements,
                message_bytes=part.benchmark.blocks(part.size) * block_bytes,
            )

    def refusal(self, case: Case, size: int) -> str | None:
        workload = source_of(self.workload, size).workload
        if size > workload.ranks:
            return f"the workload has {workload.ranks} ranks, the layout {size}"
        number = operation_number(case.workload)
        operations = self._scaled(case, size).operations
        if number is None and not operations:
            return f"no operation of the workload fits its first {size} ranks"
        if number is not None and number not in operations:
            reason = self._scaled(case, size).reasons[number]
            return f"operation {number} is not replayed by the first {size} ranks: {reason}"
        late = parse_late(case.late)
        if late is not None and late.rank >= size:
            return f"late={case.late} is of a rank that the layout does not have"
        return None

    def active(self, case: Case, size: int) -> Sequence[int]:
        return [rank for rank in range(size) if self._calls(case, rank, size)]

    def groups(self, case: Case, size: int) -> Sequence[Group]:
        alone = self._alone(case, size)
        chosen = self._parts(case, size).values() if alone is None else (alone,)
        ranks = {part.ranks for part in chosen if part.needs_group and part.size < size}
        return sorted(ranks)

    def program(self, case: Case, rank: int, size: int) -> Program:
        memory = self._memory(case, rank, size)
        calls = self._calls(case, rank, size)
        return Program(memory.buffers, tuple(self._steps(case, rank, calls, size)), memory.reset)

    def buffers(self, case: Case, rank: int, size: int) -> tuple[BufferSpec, ...]:
        return self._memory(case, rank, size).buffers

    def shape(self, case: Case, size: int) -> Shape:
        """Of the sequence, a step or recording of the job, and the bytes of the rank that moves
        most."""
        alone = self._alone(case, size)
        if alone is not None:
            moved_bytes = case.message_bytes or alone.busiest_bytes
            return Shape(1, moved_bytes, "max_over_ranks", "operation")
        parts = self._parts(case, size)
        busiest_bytes = max(
            sum(count * parts[number].moved_bytes(rank) for number, count in counts.items())
            for rank, counts in self._scaled(case, size).call_counts.items()
        )
        whole = self._scaled(case, size).whole
        kind = f"{whole.unit.partition(' ')[2]} of the job"
        return Shape(whole.steps, busiest_bytes, "max_over_ranks", kind, whole.steps == 1)

    def bus_factor(self, case: Case, size: int) -> float | None:
        """That of an operation alone, if it has one."""
        part = self._alone(case, size)
        return None if part is None else part.benchmark.bus_factor(part.case, part.size)

    def traffic_bytes(self, case: Case, size: int) -> TrafficMatrix | None:
        """That of an operation of all ranks alone."""
        part = self._alone(case, size)
        if part is None or part.size < size:
            return None
        return part.benchmark.traffic_bytes(part.case, size)

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self._memory(case, rank, size).fill(name, salt)

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self._memory(case, rank, size).expected(name, salt)

    def _scaled(self, case: Case, size: int) -> ScaledWorkload:
        return _scaled_workload(self.workload, size, case.splits)

    def _parts(self, case: Case, size: int) -> Mapping[int, Part]:
        """By the number of the operation."""
        return _workload_parts(self.workload, size, case.device, case.splits)

    def _alone(self, case: Case, size: int) -> Part | None:
        """The operation that is measured alone; None for the sequence."""
        number = operation_number(case.workload)
        return None if number is None else self._parts(case, size)[number]

    def _memory(self, case: Case, rank: int, size: int) -> RankMemory:
        if self._alone(case, size) is None:
            return _sequence_memory(self.workload, size, rank, case.device, case.splits)
        return rank_memory(self._parts(case, size), rank, self._calls(case, rank, size))

    def _calls(self, case: Case, rank: int, size: int) -> tuple[WorkloadCall, ...]:
        """The calls of a rank in a sample."""
        alone = self._alone(case, size)
        if alone is None:
            return self._scaled(case, size).calls.get(rank, ())
        return (WorkloadCall(alone.number),) if rank in alone.ranks else ()

    def _steps(
        self, case: Case, rank: int, calls: Sequence[WorkloadCall], size: int
    ) -> Iterator[Step]:
        """A call that others begin or the rank computes beside is started, and waited for when a
        later one begins that ran beside fewer."""
        parts = self._parts(case, size)
        running: deque[int] = deque()
        names = self._memory(case, rank, size).names
        made: dict[tuple[object, ...], Operation | In] = {}
        late = parse_late(case.late)
        late_ns = late.ns if late is not None and late.rank == rank else 0
        for place, call in enumerate(calls):
            ended = [running.popleft() for _ in range(len(running) - call.concurrent)]
            if ended:
                yield WaitAll(tuple(ended))
            if late_ns:
                yield Sleep(late_ns)
            yield from _computation(case, call.gap_s)
            kind = (call.operation, *names[place].values())
            if kind not in made:
                made[kind] = parts[call.operation].step(rank, names[place], size)
            step = made[kind]
            beside = list(_computation(case, call.beside_s))
            if beside or runs_beside_next(calls, place):
                yield Start(step, place)
                running.append(place)
                yield from beside
            else:
                yield step
        if running:
            yield WaitAll(tuple(running))


@dataclass(frozen=True)
class Late:
    """A rank that begins each of its calls later by `ns`."""

    rank: int
    ns: int


def parse_late(text: str | None) -> Late | None:
    """`3:400us`; raises ConfigError."""
    if text is None:
        return None
    match = LATE.fullmatch(text)
    if match is None:
        raise ConfigError(f"late={text} is no rank and time; write it like 3:400us or 0:2ms")
    factor = {"us": 1_000, "ms": 1_000_000}[match["unit"]]
    return Late(int(match["rank"]), int(match["number"]) * factor)


@lru_cache(maxsize=8)
def _scaled_workload(text: str, size: int, splits: Splits | None) -> ScaledWorkload:
    return scaled(source_of(text, size).workload, size, splits)


@lru_cache(maxsize=1024)
def _sequence_memory(
    text: str, size: int, rank: int, device: Device, splits: Splits | None
) -> RankMemory:
    calls = _scaled_workload(text, size, splits).calls.get(rank, ())
    return rank_memory(_workload_parts(text, size, device, splits), rank, calls)


@lru_cache(maxsize=8)
def _workload_parts(
    text: str, size: int, device: Device, splits: Splits | None
) -> Mapping[int, Part]:
    whole = _scaled_workload(text, size, splits)
    return {
        number: Part.of(number, operation, whole.groups[operation.group], device)
        for number, operation in whole.operations.items()
    }


def _computation(case: Case, job_s: float | None) -> Iterator[Step]:
    """What a rank does before or beside a call: nothing, or as long as the job computed."""
    duration_ns = round((job_s or 0.0) * 1e9)
    if duration_ns and case.gaps == "sleep":
        yield Sleep(duration_ns)
    if duration_ns and case.gaps == "matmul":
        yield MatmulFor(MATRIX_SIZE, duration_ns)
