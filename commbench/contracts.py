"""The words of the house: values and protocols, no behaviour of any library.

A Benchmark says for a case and a rank which buffers and steps make one sample. A Communicator lowers
them to something an engine runs n times. Nobody here knows a backend, a clock or a file format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

# ---------------------------------------------------------------- the world


@dataclass(frozen=True)
class World:
    """Who am I among whom. `nodes` holds the world ranks of each node, `hosted` those living in this process."""

    rank: int
    size: int
    nodes: tuple[tuple[int, ...], ...]
    hosted: tuple[int, ...]
    launcher: str = "none"

    @property
    def ranks_per_node(self) -> int:
        return max(len(node) for node in self.nodes)

    def node_of(self, rank: int) -> int:
        return next(index for index, ranks in enumerate(self.nodes) if rank in ranks)


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Mode:
    """How a program is run: what a backend must know to lower it, beside its steps.

    `connected`: its steps have run before. What is captured must not be a first use.
    """

    engine: str
    sync: str = "none"
    streams: int = 1
    timing_mode: str = "host"
    device: str = "cpu"
    staging: str = "none"
    connected: bool = False


@dataclass(frozen=True)
class Case:
    """One point of the independent variables. Null where a variable does not apply to the benchmark."""

    benchmark: str
    backend: str
    engine: str
    timing_mode: str
    timing: str
    sync: str
    device: str
    dtype: str
    layout: str
    pair: str | None
    message_bytes: int
    count: int
    window: int | None
    in_place: bool | None
    reduction: str | None
    root: int | None
    schedule: str | None
    streams: int | None
    staging: str
    cache: str
    cuda_ipc: str
    interface: str | None
    env: tuple[tuple[str, str], ...] = ()

    @cached_property
    def case_id(self) -> str:
        """A hash of the variables: equal in every run that measures the same point."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The rank pairs of `pair`: "0-1" is one, "0-2 1-3" two at once."""
        if self.pair is None:
            return ()
        return tuple((int(a), int(b)) for a, b in (text.split("-") for text in self.pair.split()))

    def pair_of(self, rank: int) -> tuple[int, int] | None:
        """The pair this rank belongs to; None for an idle rank."""
        return self._pair_by_rank.get(rank)

    @cached_property
    def _pair_by_rank(self) -> dict[int, tuple[int, int]]:
        return {rank: pair for pair in self.pairs for rank in pair}

    @property
    def mode(self) -> Mode:
        return Mode(self.engine, self.sync, self.streams or 1, self.timing_mode, self.device, self.staging)

    def __str__(self) -> str:
        where = f" {self.pair}" if self.pair else ""
        what = f" {self.dtype} {self.message_bytes} B" if self.message_bytes else ""
        return f"{self.benchmark} {self.layout}{where}{what}"


@dataclass(frozen=True)
class Skip:
    """A case that is not measured, and why. It becomes a row, never a hole."""

    case: Case
    reason: str


@dataclass(frozen=True)
class Shape:
    """How a sample becomes a number.

    operations_per_sample: messages or collective calls in one sample; all reported times are per operation.
    bytes_per_sample: payload moved by one sample, all ranks that count together.
    headline: whose clock counts: `initiator`, `max_over_ranks` or `max_over_senders`.
    """

    operations_per_sample: int
    bytes_per_sample: int
    headline: str


# ---------------------------------------------------------------- programs


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
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """What one rank does for one sample: `steps` are timed, `reset` runs untimed before them."""

    buffers: tuple[BufferSpec, ...] = ()
    steps: tuple[Step, ...] = ()
    reset: tuple[Step, ...] = ()

    def repeated(self, k: int) -> Program:
        """The same with k samples between two stamps (block_k)."""
        return replace(self, steps=self.steps * k)


# ---------------------------------------------------------------- payload

PERIOD = 8191  # prime, so that no block, chunk or segment size of a library is a multiple of it


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


# ---------------------------------------------------------------- protocols


class Benchmark(Protocol):
    """One operation: pure, one file, no clock and no library."""

    name: str
    axes: tuple[
        str, ...
    ]  # which of pair (one at a time), pairs (all at once), window, in_place, reduction, root it has
    cache: str  # warm or rotate, unless the user says otherwise
    min_ranks: int
    self_synchronising: bool  # one sample can't start before the last one ended everywhere that matters

    def blocks(self, size: int) -> int:
        """Into how many equal blocks the message is divided; 0 where there is no message."""

    def program(self, case: Case, rank: int, size: int) -> Program:
        """No steps for an idle rank."""

    def shape(self, case: Case, size: int) -> Shape: ...

    def bus_factor(self, size: int) -> float | None:
        """busbw = algbw x factor; None where the bus bandwidth means nothing."""

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        """What the buffer holds before; None for a buffer that is only written."""

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        """What the buffer must hold after; None for a buffer that is not checked."""


@dataclass(frozen=True)
class Planned:
    """A case in its world. `members` are world ranks in the order of the layout's ranks; `skip` is a reason or None."""

    order: int
    case: Case
    benchmark: Benchmark
    members: tuple[int, ...]
    pool: int  # copies of the buffers for rotation
    node_bytes: int  # of the fullest node
    skip: str | None

    @property
    def size(self) -> int:
        return len(self.members)

    @cached_property
    def active(self) -> tuple[int, ...]:
        """The ranks of the layout that have something to do."""
        ranks = range(self.size)
        return tuple(rank for rank in ranks if self.benchmark.program(self.case, rank, self.size).steps)

    @property
    def senders(self) -> tuple[int, ...]:
        """Rows of the sending ranks among the active ones; the first one is the initiator."""
        ranks = sorted({first for first, _ in self.case.pairs}) or list(self.active)
        rows = {rank: row for row, rank in enumerate(self.active)}
        return tuple(rows[rank] for rank in ranks)

    @cached_property
    def shape(self) -> Shape:
        return self.benchmark.shape(self.case, self.size)


class Buffer(Protocol):
    """Memory that was touched. `pool` copies of all slots lie behind one another for rotation."""

    spec: BufferSpec
    pool: int

    def write(self, pattern: Pattern | None) -> None:
        """Fill every copy; None writes the sentinel."""

    def count_wrong(self, pattern: Pattern, copies: int) -> int:
        """How many elements of the first `copies` copies, guard words included, differ."""


class Runner(Protocol):
    """A lowered program. `progress` holds (repetition, step) and may be read from another thread; step is -1 where the
    engine does not write it (the Python loop: its stack tells). `calls` are the library's calls, by step."""

    engine: str
    progress: NDArray[np.int64]
    calls: tuple[str, ...]

    def __call__(self, n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Run n repetitions; stamps [hosted, n, 2] in ns. Raises CommunicationError.
        With sync=window repetition r begins no earlier than starts[r], ns on the clock of the stamps."""


class Control(Protocol):
    """The meeting points of the ranks, apart from the library that is measured."""

    rank: int
    size: int

    def gather(self, value: Any, deadline_s: float, meeting: str = "gather") -> list[Any]:
        """JSON values of all ranks on rank 0, an empty list elsewhere. Raises Missing."""

    def collect(self, array: NDArray[np.int64], deadline_s: float, meeting: str = "collect") -> list[NDArray[np.int64]]:
        """The same for arrays."""

    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any:
        """Rank 0's value, everywhere. Raises Missing(0)."""

    def agree(self, problem: str | None, deadline_s: float, meeting: str = "agree") -> str | None:
        """None if no rank has a problem, else the first one in words, everywhere."""

    def subset(self, ranks: Sequence[int]) -> Control:
        """The meeting points of some ranks; only they may use them."""

    def farewell(self, deadline_s: float) -> None:
        """The last meeting: rank 0 may be the one who holds the store, and leaves last."""


class Communicator(Protocol):
    """An opened library on a set of ranks."""

    size: int
    hosted: tuple[int, ...]  # ranks of this communicator that live in this process

    def subset(self, ranks: Sequence[int]) -> Communicator | None:
        """The same library on some ranks, None where this process hosts none of them.

        All ranks call it, in the same order: torch names a group by how many groups the process knows already.
        """

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        """Raises MemoryError."""

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Mapping[str, Buffer]],
        mode: Mode,
    ) -> Runner:
        """Lower the programs of the hosted ranks, on all ranks at once. Raises Unsupported."""

    def counters(self) -> dict[str, float]:
        """What the library or the kernel has counted for this rank up to now; empty where nothing does."""

    def facts(self) -> dict[str, Any]:
        """Library, version, thread level, transport: what was really opened."""

    def close(self, abort: bool = False) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """A library that can be measured; importable without it."""

    name: str
    devices: tuple[str, ...]
    engines: tuple[str, ...]  # the first one is `auto`
    axes: tuple[str, ...]  # independent variables of its own: streams, or none
    launchers: tuple[str, ...]  # where its worlds can live; the first one is `auto`; () hosts all ranks itself
    threads_per_rank: int

    def missing(self, device: str) -> str | None:
        """Why this machine can't run it on cpu or cuda, found without importing it; None if it can."""

    def supports(self, case: Case, size: int) -> str | None:
        """The reason of a skip, from declared tables; None if it can."""

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        """What must be exported before the library starts."""

    def open(self, world: World, control: Control, device: str) -> Communicator: ...


@runtime_checkable
class OnGpu(Protocol):
    """What a backend tells beside, if it runs on cuda."""

    shares_gpu: bool  # whether two of its ranks may use one GPU

    def staging(self, benchmark: str) -> str:
        """How an operation's messages reach device memory: none (the library does it), library (it copies through host
        memory), pinned (we copy through pinned host memory, in the timed steps)."""


class Launcher(Protocol):
    """How a world of so many nodes with so many ranks each is started from here."""

    @property
    def name(self) -> str: ...

    @property
    def meets_over_mpi(self) -> bool:
        """Whether its ranks load MPI to find each other, whatever the backend is."""

    @property
    def reach(self) -> int:
        """The most nodes that it can start ranks on; 1 is this machine."""

    def command(
        self, nodes: int, ranks_per_node: int, worker: Sequence[str], library: str | None, exports: Sequence[str] = ()
    ) -> list[str]:
        """`exports` are variables that ranks on other hosts need. Raises ConfigError where the program to start them
        is not installed."""

    def environment(self, nodes: int, ranks_per_node: int, library: str | None) -> dict[str, str]: ...


class Writer(Protocol):
    """One output format. Only rank 0 has writers."""

    def begin(self, run: Mapping[str, Any], folder: str) -> None: ...

    def case(
        self, row: Mapping[str, Any], samples: Mapping[str, NDArray[Any]], counters: Mapping[str, NDArray[Any]]
    ) -> None:
        """Columns of samples.parquet and counters.parquet; a later row of the same case replaces the earlier one."""

    def end(self, run: Mapping[str, Any]) -> None: ...
