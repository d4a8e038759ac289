"""Programs: what a rank does in one sample, as buffers and steps, and patterns: what its buffers
hold.

A Communicator lowers the steps to calls of its library; an engine runs them n times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .variables import ReductionName

MemoryKind = Literal["device", "host", "pinned"]
DEVICE: MemoryKind = "device"
HOST: MemoryKind = "host"
PINNED: MemoryKind = "pinned"
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


@dataclass(frozen=True)
class Isend:
    data: View
    peer: int
    request: int


@dataclass(frozen=True)
class Irecv:
    data: View
    peer: int
    request: int


Message = Send | Recv | Isend | Irecv


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
class Icopy:
    """A copy within a rank that runs concurrently with the next steps, up to the WaitAll for its
    request."""

    source: View
    target: View
    request: int


Step = (
    Message | WaitAll | Barrier | AllReduce | Broadcast | Reduce
    | AllGather | Gather | Scatter | ReduceScatter | AllToAll | AllToAllV | Copy | Icopy
)  # fmt: skip


def operation_name(kind: type[Step]) -> str:
    """The name of the benchmark that measures this operation alone: all_reduce for AllReduce."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def _kind(step: Step) -> type[Step]:
    if isinstance(step, Message):
        return Send
    return Copy if isinstance(step, Icopy) else type(step)


@dataclass(frozen=True)
class Program:
    """`steps` are timed, `reset` runs untimed before them."""

    buffers: tuple[BufferSpec, ...] = ()
    steps: tuple[Step, ...] = ()
    reset: tuple[Step, ...] = ()

    @property
    def operation(self) -> type[Step] | None:
        """The only kind of operation that is timed, Send for all messages and Copy for all copies;
        None if there are several kinds, or none."""
        kinds = {_kind(step) for step in self.steps if not isinstance(step, WaitAll)}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def unfinished(self) -> set[int]:
        """The requests that no later WaitAll completes."""
        pending: set[int] = set()
        for step in self.steps:
            if isinstance(step, Isend | Irecv | Icopy):
                pending.add(step.request)
            elif isinstance(step, WaitAll):
                pending -= set(step.requests)
        return pending

    def repeated(self, k: int) -> Program:
        """The program with k samples between two stamps (block_k)."""
        return replace(self, steps=self.steps * k)


@dataclass(frozen=True, eq=False)
class Segment:
    """`count` elements: element i is period[(shift + i) mod PERIOD], a small integer."""

    count: int
    period: NDArray[np.int64]
    shift: int = 0


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
