"""Programs: what a rank does in one sample, as buffers and steps, and patterns: what its buffers
hold.

A Communicator lowers the steps to calls of its library; an engine runs them n times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .variables import Engine, Mode, ReductionName

MemoryKind = Literal["device", "host", "pinned"]
DEVICE: MemoryKind = "device"
HOST: MemoryKind = "host"
PINNED: MemoryKind = "pinned"
Group = tuple[int, ...]
PERIOD = 8191  # prime, so that no block, chunk or segment size of a library is a multiple of it


@dataclass(frozen=True)
class BufferSpec:
    """`slots` separate blocks of `count` elements, one per message of a window. Rotation allocates
    a pool of copies.

    `memory`: device (the case's device: a GPU, or the host with device=cpu), host, or pinned
    (page-locked host memory).
    """

    name: str
    count: int
    dtype: str
    slots: int = 1
    memory: MemoryKind = DEVICE


@dataclass(frozen=True)
class View:
    """`count` elements (None: all) of one slot of a buffer, from `offset` on."""

    buffer: str
    slot: int = 0
    offset: int = 0
    count: int | None = None

    def count_in(self, spec: BufferSpec) -> int:
        """The number of elements of this view of a buffer with that specification."""
        return spec.count - self.offset if self.count is None else self.count

    @property
    def elements(self) -> slice:
        """The elements of the slot that this view covers."""
        return slice(self.offset, None if self.count is None else self.offset + self.count)


@dataclass(frozen=True)
class Send:
    data: View
    peer: int


@dataclass(frozen=True)
class Recv:
    data: View
    peer: int


Message = Send | Recv


@dataclass(frozen=True)
class WaitAll:
    requests: tuple[int, ...]


@dataclass(frozen=True)
class Barrier:
    pass


@dataclass(frozen=True)
class AllReduce:
    """In place if both views are the same."""

    send: View
    recv: View
    reduction: ReductionName


@dataclass(frozen=True)
class Broadcast:
    data: View
    root: int


@dataclass(frozen=True)
class Reduce:
    """`recv` is used on the root only."""

    send: View
    recv: View
    reduction: ReductionName
    root: int


@dataclass(frozen=True)
class AllGather:
    """`recv` holds one block of the size of `send` per rank, in rank order."""

    send: View
    recv: View


@dataclass(frozen=True)
class Gather:
    """`recv` is used on the root only and holds one block per rank."""

    send: View
    recv: View
    root: int


@dataclass(frozen=True)
class Scatter:
    """`send` is used on the root only and holds one block per rank."""

    send: View
    recv: View
    root: int


@dataclass(frozen=True)
class ReduceScatter:
    """`send` holds one block per rank; `recv` is the reduced block of this rank."""

    send: View
    recv: View
    reduction: ReductionName


@dataclass(frozen=True)
class AllToAll:
    """`send` and `recv` hold one block per rank."""

    send: View
    recv: View


@dataclass(frozen=True)
class AllToAllV:
    """`send` begins with the blocks for all ranks and `recv` with those from all ranks, in rank
    order and without gaps: `send_counts` and `recv_counts` elements, also none at all."""

    send: View
    recv: View
    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]


@dataclass(frozen=True)
class Copy:
    """A copy within a rank."""

    source: View
    target: View


@dataclass(frozen=True)
class OwnStep:
    """A step that no backend knows: the benchmark that brings it along has its calls. Only the
    host's clock times it."""

    def refusal(self, backend: Any) -> str | None:
        """Why it has no call of this backend; None if it has one."""
        raise NotImplementedError

    def call(self, communicator: Any, engine: Engine) -> Any:
        """Its Call or NativeCall (engines/) of this communicator."""
        raise NotImplementedError

    @property
    def simulated(self) -> Operation | Compute | In:
        """What takes as long in a simulated world."""
        raise NotImplementedError


Operation = (
    Message | Barrier | AllReduce | Broadcast | Reduce | AllGather | Gather | Scatter
    | ReduceScatter | AllToAll | AllToAllV | Copy | OwnStep
)  # fmt: skip


@dataclass(frozen=True)
class Sleep:
    """The rank does nothing."""

    duration_ns: int


@dataclass(frozen=True)
class MemoryStream:
    """Copies that many bytes between two buffers of its own, each time from other memory than the
    last one, until it is through."""

    size_bytes: int


@dataclass(frozen=True)
class Matmul:
    """Multiplies square float32 matrices of its own, as often as it says."""

    size: int
    repetitions: int


@dataclass(frozen=True)
class MatmulFor:
    """Multiplies such matrices until that time has passed, whatever else slows it."""

    size: int
    duration_ns: int


Compute = Sleep | MemoryStream | Matmul | MatmulFor


@dataclass(frozen=True)
class In:
    """An operation of a group: ranks of the layout in the group's order, this one among them. Peers
    and roots are ranks of the group. Benchmark.groups names the groups of a case."""

    group: Group
    step: Operation


@dataclass(frozen=True)
class Start:
    """Begin an operation and do not wait for it: the non-blocking form of any operation.

    It may run at any time until the WaitAll that names its request has returned, which it does when
    all operations that it names are complete, and no later than that: it must not need other
    operations of this rank. Until then its memory belongs to the operation. Each request is named
    by one WaitAll, and may be used again after that. Collectives begin in the same order on all
    ranks. A backend that can't keep this refuses the program with a reason (Unsupported).
    """

    step: Operation | In
    request: int


Step = Operation | Compute | In | Start | WaitAll


def operation_name(kind: type[Step]) -> str:
    """The name of the benchmark that measures this operation alone: all_reduce for AllReduce."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def operation_of(step: Step) -> Operation | Compute | WaitAll:
    """The operation that a step begins or runs, in a group or not; a WaitAll and a
    computation are themselves."""
    inner = step.step if isinstance(step, Start) else step
    return inner.step if isinstance(inner, In) else inner


def _written(step: Operation | Compute | WaitAll) -> View | None:
    """What a step writes to, on a rank that receives."""
    if isinstance(step, Recv | Broadcast):
        return step.data
    return step.target if isinstance(step, Copy) else getattr(step, "recv", None)


def _overlap(first: View, second: View) -> bool:
    """Whether two views of one slot share elements."""
    earlier, later = sorted((first, second), key=lambda view: view.offset)
    return earlier.count is None or earlier.offset + earlier.count > later.offset


def group_of(step: Step) -> Group | None:
    """The group that the step names; None for all ranks."""
    inner = step.step if isinstance(step, Start) else step
    return inner.group if isinstance(inner, In) else None


def with_operation(step: Step, operation: Operation) -> Step:
    """The step with another operation, begun and in a group as before."""
    if isinstance(step, Start):
        inner = replace(step.step, step=operation) if isinstance(step.step, In) else operation
        return replace(step, step=inner)
    return replace(step, step=operation) if isinstance(step, In) else operation


def begun_and_rest(
    steps: Sequence[Step], request: int = 0
) -> tuple[tuple[Step, ...], tuple[Step, ...]] | None:
    """The steps that only begin operations, and those that wait for them; None for a program that
    waits before it has begun all. `request`: that of a single operation."""
    if len(steps) == 1:
        (step,) = steps
        if isinstance(step, Start | WaitAll | Compute):
            return None
        return (Start(step, request),), (WaitAll((request,)),)
    begun = next((at for at, step in enumerate(steps) if not isinstance(step, Start)), len(steps))
    if begun == 0 or not all(isinstance(step, WaitAll) for step in steps[begun : begun + 1]):
        return None
    return tuple(steps[:begun]), tuple(steps[begun:])


@dataclass(frozen=True)
class Program:
    """`steps` are timed. Untimed are `reset`, before the ranks meet, `lead` between that and the
    steps, such as the start of what goes on beside them, and `after`, such as the wait for it.
    `runner`, of a benchmark that brings its own along: the Runner of a backend's lowering of it."""

    buffers: tuple[BufferSpec, ...] = ()
    steps: tuple[Step, ...] = ()
    reset: tuple[Step, ...] = ()
    lead: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    runner: Callable[[Any, Program, Mode], Any] | None = None

    @property
    def operation(self) -> type[Step] | None:
        """The only kind of operation that is timed, Send for all messages and Copy for all copies;
        None if there are several kinds, or none."""
        timed = (operation_of(step) for step in self.steps if not isinstance(step, WaitAll))
        kinds = {Send if isinstance(step, Message) else type(step) for step in timed}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def from_lead(self) -> tuple[Step, ...]:
        """The steps of a repetition after the ranks have met, timed or not."""
        if not self.lead and not self.after:  # thousands of steps need no copy
            return self.steps
        return (*self.lead, *self.steps, *self.after)

    @property
    def groups(self) -> frozenset[Group]:
        """The groups of its steps."""
        groups = map(group_of, self.from_lead)
        return frozenset(group for group in groups if group is not None)

    @property
    def rewrites(self) -> bool:
        """Whether its steps write elements of a buffer more than once."""
        written = dict[tuple[str, int], list[View]]()
        for step in map(operation_of, self.from_lead):
            view = _written(step)
            if view is None:
                continue
            others = written.setdefault((view.buffer, view.slot), [])
            if any(_overlap(view, other) for other in others):
                return True
            others.append(view)
        return False

    @property
    def unfinished(self) -> set[int]:
        """The requests that no later WaitAll completes."""
        pending: set[int] = set()
        for step in self.from_lead:
            if isinstance(step, Start):
                pending.add(step.request)
            elif isinstance(step, WaitAll):
                pending -= set(step.requests)
        return pending

    def own_refusal(self, backend: Any) -> str | None:
        """Why a step of the benchmark's own has no call of this backend."""
        own = (step.refusal(backend) for step in self.steps if isinstance(step, OwnStep))
        return next(filter(None, own), None)

    def repeated(self, k: int) -> Program:
        """The program with k samples between two stamps (block_k); only 1 with steps before or
        after them that are not timed."""
        return replace(self, steps=self.steps * k)


@dataclass(frozen=True, eq=False)
class Segment:
    """`count` elements: element i is period[(shift + i) mod PERIOD], a small integer or a number of
    the buffer's type; with a `tolerance` [PERIOD], any number that is no further from it."""

    count: int
    period: NDArray[Any]
    shift: int = 0
    tolerance: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Pattern:
    """The contents of a buffer, slot after slot. `ulp` is the tolerance in units in the last place;
    0 is exact."""

    segments: tuple[Segment, ...]
    ulp: int = 0
    divisor: int = 1  # every element is divided by it after encoding (averages)

    @property
    def count(self) -> int:
        return sum(segment.count for segment in self.segments)

    def part(self, begin: int, count: int | None = None) -> Pattern:
        """Its elements from `begin` on, at most `count`."""
        left = self.count if count is None else count
        segments = []
        for segment in self.segments:
            own = min(segment.count - begin, left)
            if own > 0:
                shift = (segment.shift + begin) % PERIOD
                segments.append(replace(segment, count=own, shift=shift))
                left -= own
            begin = max(0, begin - segment.count)
        return replace(self, segments=tuple(segments))
