"""What one rank does for one sample: buffers, steps, and what the buffers hold before and after.

A Communicator lowers the steps to calls of its library; an engine runs them n times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

PERIOD = 8191  # prime, so that no block, chunk or segment size of a library is a multiple of it


@dataclass(frozen=True)
class BufferSpec:
    """`slots` blocks of `count` elements that lie apart: a window. Rotation multiplies them by a pool."""

    name: str
    count: int
    dtype: str
    slots: int = 1


@dataclass(frozen=True)
class View:
    """`count` elements (None: all) from `offset` on in one slot of a buffer."""

    buffer: str
    slot: int = 0
    offset: int = 0
    count: int | None = None

    def count_in(self, spec: BufferSpec) -> int:
        """Elements of a slot of that buffer that it covers."""
        return spec.count - self.offset if self.count is None else self.count


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


@dataclass(frozen=True)
class WaitAll:
    requests: tuple[int, ...]


@dataclass(frozen=True)
class Barrier:
    pass


@dataclass(frozen=True)
class AllReduce:
    """In place where both views are the same."""

    send: View
    recv: View
    reduction: str


@dataclass(frozen=True)
class Broadcast:
    data: View
    root: int


@dataclass(frozen=True)
class Reduce:
    """`recv` counts on the root only."""

    send: View
    recv: View
    reduction: str
    root: int


@dataclass(frozen=True)
class AllGather:
    """`recv` holds one block of `send`'s size for each rank, in rank order."""

    send: View
    recv: View


@dataclass(frozen=True)
class Gather:
    """`recv` counts on the root only and holds one block for each rank."""

    send: View
    recv: View
    root: int


@dataclass(frozen=True)
class Scatter:
    """`send` counts on the root only and holds one block for each rank."""

    send: View
    recv: View
    root: int


@dataclass(frozen=True)
class ReduceScatter:
    """`send` holds one block for each rank; `recv` is this rank's reduced block."""

    send: View
    recv: View
    reduction: str


@dataclass(frozen=True)
class AllToAll:
    """`send` and `recv` hold one block for each rank."""

    send: View
    recv: View


@dataclass(frozen=True)
class Copy:
    source: View
    target: View


Step = (
    Send | Recv | Isend | Irecv | WaitAll | Barrier | AllReduce | Broadcast | Reduce
    | AllGather | Gather | Scatter | ReduceScatter | AllToAll | Copy
)  # fmt: skip  # fmt: skip


@dataclass(frozen=True)
class Program:
    """What one rank does for one sample: `steps` are timed, `reset` runs untimed before them."""

    buffers: tuple[BufferSpec, ...] = ()
    steps: tuple[Step, ...] = ()
    reset: tuple[Step, ...] = ()

    def repeated(self, k: int) -> Program:
        """The same with k samples between two stamps (block_k)."""
        return replace(self, steps=self.steps * k)


@dataclass(frozen=True, eq=False)
class Segment:
    """`count` elements: element i is period[(shift + i) mod PERIOD], a small integer."""

    count: int
    period: NDArray[np.int64]
    shift: int = 0


@dataclass(frozen=True, eq=False)
class Pattern:
    """What a buffer holds, slot after slot. `ulp` is the tolerance in units in the last place; 0 is exact."""

    segments: tuple[Segment, ...]
    ulp: int = 0
    divisor: int = 1  # every element is divided by it after encoding (averages)

    @property
    def count(self) -> int:
        return sum(segment.count for segment in self.segments)
