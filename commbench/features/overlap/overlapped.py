"""An operation with a computation beside it: its cases, and the benchmark around its benchmark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Benchmark, Shape
from commbench.core.errors import ConfigError
from commbench.core.program import (
    BufferSpec,
    Compute,
    Group,
    Matmul,
    MemoryStream,
    Message,
    Pattern,
    Program,
    Sleep,
    begun_and_rest,
    operation_of,
)
from commbench.core.protocols import Backend
from commbench.core.variables import Case, Overlap, Timed
from commbench.engines.compute import STREAM_BYTES

COMPUTE_TIME = re.compile(r"(?P<number>[1-9]\d{0,8})(?P<unit>us|ms)")
NS_PER_UNIT = {"us": 1_000, "ms": 1_000_000}
# a product takes some 10 us: its three matrices stay in a core's cache, and short operations still
# have several
MATRIX_SIZE = 64
# the timers that can time steps while an operation that was started before goes on
BESIDE_MODES = ("host", "device_event")
TIMED_TEXTS: Mapping[Timed, str] = {
    "communication": "operation alone",
    "compute": "computation alone",
    "compute_beside": "computation beside the operation",
    "together": "operation and computation until the end of both",
}
TAKEN_OVER = ("name", "axes", "cache", "min_ranks", "self_synchronising")


def compute_time_ns(text: str) -> int:
    """`100us` or `2ms`. Raises ConfigError."""
    match = COMPUTE_TIME.fullmatch(text)
    if match is None:
        raise ConfigError(f"compute={text} is not a time; write it like 100us or 2ms, or null")
    return int(match["number"]) * NS_PER_UNIT[match["unit"]]


def overlap_cases(case: Case) -> Iterator[Case]:
    """The cases that an overlap stands for; the case itself without one.

    That of the communication alone is the same for every computation. There is none of the
    computation beside communication where everything that was started ends before the clock is
    read.
    """
    if case.overlap is None:
        yield case if case.compute is None else replace(case, compute=None)
        return
    yield replace(case, overlap=None, compute=None, timed="communication")
    yield replace(case, timed="compute")
    yield replace(case, timed="together")
    if case.timer in BESIDE_MODES:
        yield replace(case, timed="compute_beside")


def sibling(case: Case, timed: Timed) -> Case:
    """Another case of the same overlap."""
    if timed == "communication":
        return replace(case, overlap=None, compute=None, timed=timed)
    return replace(case, timed=timed)


def compute_step(kind: Overlap, amount: int) -> Compute:
    """`amount`: ns to sleep, bytes to copy, or matrices to multiply."""
    match kind:
        case "sleep":
            return Sleep(amount)
        case "memory":
            return MemoryStream(amount)
        case "matmul":
            return Matmul(MATRIX_SIZE, amount)


def around(benchmark: Benchmark, case: Case, backend: Backend) -> Benchmark:
    """The benchmark of a case of an overlap; that of another one as it is."""
    if case.timed is None:
        return benchmark
    return Overlapped(benchmark, case.timed, backend.joins_messages)


@dataclass(frozen=True)
class Overlapped(Benchmark):
    """`inner` and a computation, of which a sample times a part or both.

    `joins_messages`: see Backend. `compute_amount`: see compute_step; None where it is not known
    yet, which changes no buffer and no operation.
    """

    # those of `inner`, once there is one
    name = ""
    axes = ()
    cache = "warm"
    min_ranks = 1
    self_synchronising = False
    inner: Benchmark
    timed: Timed
    joins_messages: bool = False
    compute_amount: int | None = None

    def __post_init__(self) -> None:
        for fact in TAKEN_OVER:
            object.__setattr__(self, fact, getattr(self.inner, fact))
        if self.timed == "compute_beside":  # a sample ends before what it has started
            object.__setattr__(self, "self_synchronising", False)

    def blocks(self, size: int) -> int:
        return self.inner.blocks(size)

    def recorded_inputs(self) -> str:
        return self.inner.recorded_inputs()

    def variants(self, case: Case, size: int) -> Iterable[Case]:
        return self.inner.variants(case, size)

    def refusal(self, case: Case, size: int) -> str | None:
        reason = self.inner.refusal(case, size)
        if reason is not None:
            return reason
        rank = case.pairs[0][0] if case.pairs else 0
        return self._program_refusal(case, self.inner.program(case, rank, size))

    def _program_refusal(self, case: Case, program: Program) -> str | None:
        if program.runner is not None:
            return f"a {self.name} has no computation beside it"
        if not program.steps:
            return None
        parts = begun_and_rest(program.steps)
        if parts is None:
            return (
                f"{case.benchmark} waits more than once in a sample, so nothing can be computed"
                " beside it; overlap= takes collectives and p2p_bandwidth"
            )
        begun, _ = parts
        are_messages = any(isinstance(operation_of(step), Message) for step in begun)
        if self.joins_messages and are_messages:
            return (
                f"{case.backend} sends the messages of {case.benchmark} in the wait for them, so"
                " nothing goes on beside a computation; overlap= takes collectives"
            )
        return None

    def traffic_bytes(self, case: Case, size: int) -> NDArray[np.int64] | None:
        return self.inner.traffic_bytes(case, size)

    def program(self, case: Case, rank: int, size: int) -> Program:
        program = self.inner.program(case, rank, size)
        parts = begun_and_rest(program.steps)
        if parts is None:
            return program
        begun, rest = parts
        if self.timed == "communication" or case.overlap is None:
            return replace(program, steps=(*begun, *rest))
        compute = compute_step(case.overlap, self.compute_amount or 1)
        match self.timed:
            case "compute":
                return Program(steps=(compute,))
            case "together":
                return replace(program, steps=(*begun, compute, *rest))
            case "compute_beside":
                return replace(program, lead=begun, steps=(compute,), after=rest)

    def active(self, case: Case, size: int) -> Sequence[int]:
        return self.inner.active(case, size)

    def buffers(self, case: Case, rank: int, size: int) -> tuple[BufferSpec, ...]:
        return () if self.timed == "compute" else self.inner.buffers(case, rank, size)

    def computed_bytes(self, case: Case) -> int:
        return 2 * STREAM_BYTES if case.overlap == "memory" else 0

    def groups(self, case: Case, size: int) -> Sequence[Group]:
        return self.inner.groups(case, size)

    def of_row(self) -> Benchmark | None:
        inner = self.inner.of_row()
        return None if inner is None else replace(self, inner=inner)

    def shape(self, case: Case, size: int) -> Shape:
        """Whole samples are timed, and only communication alone has a rate."""
        shape = self.inner.shape(case, size)
        return Shape(
            operations=1,
            moved_bytes=shape.moved_bytes if self.timed == "communication" else 0,
            headline=shape.headline,
            median_of=TIMED_TEXTS[self.timed],
            rated=False,
        )

    def bus_factor(self, case: Case, size: int) -> float | None:
        return self.inner.bus_factor(case, size)

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.inner.fill(case, rank, size, name, salt)

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.inner.expected(case, rank, size, name, salt)
