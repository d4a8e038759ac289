"""Cases: one point of the independent variables, the world it runs in, and the operation that it
measures."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Protocol

from .program import Isend, Pattern, Program, WaitAll
from .units import short_pairs


@dataclass(frozen=True)
class RankIdentity:
    """The rank that a process is, as its launcher exports it.

    `node_id`: the launcher's number or name of the node, where it exports one. `variables`: those
    that hold the rank and the size.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    node_id: str | None = None
    variables: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class World:
    """A rank and its world. `nodes` are the world ranks of each node, `hosted` those in this
    process."""

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

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The world ranks on this rank's node, including itself."""
        return self.nodes[self.node_of(self.rank)]

    @property
    def local_rank(self) -> int:
        """This rank's position among the ranks of its node."""
        return self.neighbours.index(self.rank)


def options_text(parameters: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """A backend's parameters as text (Case.backend_options), without the MPI library and the
    seed."""
    return tuple(
        (name, value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in sorted(parameters.items())
        if name not in ("_target_", "library", "seed")
    )


def version_of(library: str | None) -> str | None:
    """The version in the name of a library: `5.0.11` in `Open MPI v5.0.11`; None if there is
    none."""
    match = re.search(r"(?<![\w.])v?(\d+(?:\.\d+)+\S*)", library or "")
    return match[1].rstrip(",;)") if match else None


@dataclass(frozen=True)
class Mode:
    """How a program is run: what a backend must know beside the steps to lower them.

    `connected`: the steps have run before, so they may be captured in a graph.
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
    """One point of the independent variables; a variable that does not apply to the benchmark is
    None."""

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
    elements: int
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
    library: str | None = None  # known once the backend has opened it
    bind: str = "auto"
    backend_options: tuple[tuple[str, str], ...] = ()
    buffers: str | None = None

    @cached_property
    def case_id(self) -> str:
        """A hash of the variables, equal in every run that measures the same point."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """`pair` as rank pairs: "0-1" is one, "0-2 1-3" are two at once."""
        if self.pair is None:
            return ()
        return tuple((int(a), int(b)) for a, b in (text.split("-") for text in self.pair.split()))

    @cached_property
    def pair_by_rank(self) -> dict[int, tuple[int, int]]:
        """The pair of each rank that has one."""
        return {rank: pair for pair in self.pairs for rank in pair}

    @property
    def mode(self) -> Mode:
        return Mode(
            self.engine, self.sync, self.streams or 1, self.timing_mode, self.device, self.staging
        )

    def __str__(self) -> str:
        where = f" {short_pairs(self.pair)}" if self.pair else ""
        what = f" {self.dtype} {self.message_bytes} B" if self.message_bytes else ""
        return f"{self.benchmark} {self.layout}{where}{what}"


@dataclass(frozen=True)
class Shape:
    """How a sample becomes a number.

    operations_per_sample: messages or collective calls in one sample; reported times are per
    operation. bytes_per_sample: payload that one sample moves, of all ranks whose clocks count.
    headline: whose clock counts: `initiator`, `max_over_ranks` or `max_over_senders`. median_of:
    what the time per operation is, in words. single: whether a sample is one such operation, so
    that percentiles of samples are those of operations.
    """

    operations_per_sample: int
    bytes_per_sample: int
    headline: str
    median_of: str = "operation"
    single: bool = True


class Benchmark(Protocol):
    """An operation, as pure functions of the case: without a clock and without a library."""

    name: str
    # its variables, of pair (one at a time), pairs (all at once), window, buffers, in_place,
    # reduction, root, staging
    axes: tuple[str, ...]
    cache: str  # the default: warm or rotate
    min_ranks: int
    # a sample can't start before the previous one has ended on all ranks that matter
    self_synchronising: bool

    def blocks(self, size: int) -> int:
        """The number of equal blocks that the message is divided into; 0 without a message."""

    def program(self, case: Case, rank: int, size: int) -> Program:
        """The program of a rank; without steps for an idle one."""

    def shape(self, case: Case, size: int) -> Shape: ...

    def bus_factor(self, size: int) -> float | None:
        """The ratio of busbw to algbw; None where bus bandwidth is not defined."""

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        """The contents of a buffer before the steps; None for a buffer that is only written."""

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        """The contents that a buffer must have after the steps; None for a buffer that is not
        checked."""


@dataclass(frozen=True)
class Planned:
    """A case in its world. `members` are world ranks in the order of the layout's ranks; `skip` is
    a reason or None."""

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

    def program(self, rank: int) -> Program:
        """The program of a rank of the layout. Built once and kept with this object, not with
        copies (`replace`)."""
        if rank not in self._programs:
            self._programs[rank] = self.benchmark.program(self.case, rank, self.size)
        return self._programs[rank]

    @cached_property
    def _programs(self) -> dict[int, Program]:
        return {}

    @cached_property
    def active(self) -> tuple[int, ...]:
        """The ranks of the layout whose programs have steps."""
        return tuple(rank for rank in range(self.size) if self.program(rank).steps)

    @property
    def senders(self) -> tuple[int, ...]:
        """The positions of the sending ranks in `active`; the first is the initiator."""
        ranks = sorted({first for first, _ in self.case.pairs}) or list(self.active)
        rows = {rank: row for row, rank in enumerate(self.active)}
        return tuple(rows[rank] for rank in ranks)

    @cached_property
    def shape(self) -> Shape:
        return self.benchmark.shape(self.case, self.size)

    @property
    def bus_factor(self) -> float | None:
        """The benchmark's factor; 1 if each rank communicates with itself only, which has one
        direction."""
        factor = self.benchmark.bus_factor(self.size)
        alone = self.case.pairs and all(first == second for first, second in self.case.pairs)
        return 1.0 if alone and factor is not None else factor

    @property
    def messages_per_peer(self) -> int:
        """The largest number of messages to one peer that the initiator posts before it waits."""
        most = 0
        posted = Counter[int]()
        for step in self.program(self.senders[0]).steps if self.active else ():
            if isinstance(step, WaitAll):
                most = max(most, *posted.values(), 0)
                posted = Counter()
            elif isinstance(step, Isend):
                posted[step.peer] += 1
        return most
