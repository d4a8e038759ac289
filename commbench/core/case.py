"""A case in its run: the world, the operation that it measures, how a sample becomes a number."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from .program import BufferSpec, Group, Pattern, Program, Send, Start, Step, WaitAll
from .states import Headline
from .variables import Cache, Case, Variables


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
    def is_hosted(self) -> bool:
        """Whether this process hosts several ranks, as a simulated world does."""
        return len(self.hosted) > 1

    @property
    def ranks_per_node(self) -> int:
        return max(map(len, self.nodes))

    def node_of(self, rank: int) -> int:
        return self._node_by_rank[rank]

    def nodes_of(self, ranks: tuple[int, ...]) -> frozenset[int]:
        """The nodes of these ranks."""
        if ranks not in self._nodes_by_ranks:  # few: the layouts of a run
            self._nodes_by_ranks[ranks] = frozenset(map(self.node_of, ranks))
        return self._nodes_by_ranks[ranks]

    @cached_property
    def _nodes_by_ranks(self) -> dict[tuple[int, ...], frozenset[int]]:
        return {}

    @cached_property
    def _node_by_rank(self) -> dict[int, int]:
        return {rank: node for node, ranks in enumerate(self.nodes) for rank in ranks}

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
class Shape:
    """How a sample becomes a number.

    operations: messages or collective calls in one sample; reported times are per operation.
    moved_bytes: payload of a sample, of all ranks whose clocks count. headline: whose clock counts;
    of `ranks` only, where they are given. median_of: what the time per operation is, in words.
    single: whether a sample is one such operation, so that percentiles of samples are those of
    operations. rated: whether its inverse is a rate of messages.
    """

    operations: int
    moved_bytes: int
    headline: Headline
    median_of: str = "operation"
    single: bool = True
    rated: bool = True
    ranks: tuple[int, ...] | None = None

    @property
    def is_stream(self) -> bool:
        """Whether messages follow one another without an answer: only their receiver sees when
        they arrive, and gets several at once."""
        return self.headline == "receiver"


def counting_ranks(
    case: Variables, headline: Headline | None, named: Sequence[int] | None
) -> Sequence[int] | None:
    """The ranks whose clocks count, by the headline: an end of each pair; else those that a shape
    names; None for all."""
    if headline == "max_over_ranks" or not case.pairs:
        return named
    return [pair[headline == "receiver"] for pair in case.pairs]


class Benchmark(Protocol):
    """An operation, as pure functions of the case: without a clock and without a library.
    Benchmarks inherit from this class for its defaults."""

    name: ClassVar[str]
    # its variables, of pair (one at a time), pairs (all at once), window, buffers, in_place,
    # reduction, payload, root, staging, traffic
    axes: ClassVar[tuple[str, ...]]
    cache: ClassVar[Cache]  # the default: warm or rotate
    min_ranks: ClassVar[int]
    # a sample can't start before the previous one has ended on all ranks that matter
    self_synchronising: ClassVar[bool]
    # how much a sample computes beside its operation; None until all ranks know it
    compute_amount: int | None = None

    def blocks(self, size: int) -> int:
        """The number of equal blocks that the message is divided into; 0 without a message."""

    def recorded_inputs(self) -> str:
        """What it reads beside its variables, files with a digest of their content: the ranks
        compare it. Raises ConfigError."""
        return ""

    def variants(self, case: Case, size: int) -> Iterable[Case]:
        """The cases that it stands for: with the size of the message, where another variable
        decides that."""
        return (case,)

    def refusal(self, case: Case, size: int) -> str | None:
        """Why it can't run with these variables on so many ranks; None if it can."""
        return None

    def traffic_bytes(self, case: Case, size: int) -> NDArray[np.int64] | None:
        """Bytes from each rank to each rank [senders, receivers], where a variable decides them;
        else None."""
        return None

    def program(self, case: Case, rank: int, size: int) -> Program:
        """The program of a rank; without steps for an idle one."""

    def active(self, case: Case, size: int) -> Sequence[int]:
        """The ranks whose programs have steps, in ascending order: those of the pairs, else all."""
        return sorted(case.pair_by_rank) or range(size)

    def buffers(self, case: Case, rank: int, size: int) -> tuple[BufferSpec, ...]:
        """The buffers of the program of a rank. A plan asks for those of every rank, so a program
        of many steps should not be built for them. Between pairs, they depend on the place of the
        rank in its pair alone: a plan asks for those of one pair."""
        return self.program(case, rank, size).buffers

    def computed_bytes(self, case: Case) -> int:
        """The memory of a rank, beside the buffers, that its computation works on."""
        return 0

    def groups(self, case: Case, size: int) -> Sequence[Group]:
        """The groups of ranks that steps of the case name (In). They are opened at the start of the
        run, so a program may name no others."""
        return ()

    def of_row(self) -> Benchmark | None:
        """The operation of a row, whose ranks are a layout of their own; None where they are ranks
        of that of the case."""
        return None

    def shape(self, case: Case, size: int) -> Shape: ...

    def bus_factor(self, case: Case, size: int) -> float | None:
        """The ratio of busbw to algbw; None where bus bandwidth is not defined."""

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        """The contents of a buffer before the steps; None for a buffer that is only written."""

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        """The contents that a buffer must have after the steps; None for a buffer that is not
        checked."""


@dataclass(frozen=True, order=True)
class CaseGroup:
    """Cases that share a communicator: its ranks, and whether its calls are captured in graphs."""

    members: tuple[int, ...]
    captures: bool = False


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

    @property
    def group(self) -> CaseGroup:
        return CaseGroup(self.members, self.case.timer == "graph")

    @property
    def inner_groups(self) -> dict[Group, CaseGroup]:
        """Those that the benchmark names, by their ranks in the layout."""
        captures = self.group.captures
        return {
            ranks: CaseGroup(tuple(self.members[rank] for rank in ranks), captures)
            for ranks in self.benchmark.groups(self.case, self.size)
        }

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
        return tuple(self.benchmark.active(self.case, self.size))

    def buffers(self, rank: int) -> tuple[BufferSpec, ...]:
        """The buffers of a rank of the layout."""
        return self.benchmark.buffers(self.case, rank, self.size)

    @property
    def senders(self) -> tuple[int, ...]:
        """The positions of the sending ranks in `active`; the first is the initiator."""
        ranks = sorted({first for first, _ in self.case.pairs}) or list(self.active)
        rows = {rank: row for row, rank in enumerate(self.active)}
        return tuple(rows[rank] for rank in ranks)

    @cached_property
    def shape(self) -> Shape:
        return self.benchmark.shape(self.case, self.size)

    @cached_property
    def operation(self) -> type[Step] | None:
        """See Program, of the first active rank."""
        return self.program(self.active[0]).operation if self.active else None

    @property
    def bus_factor(self) -> float | None:
        """The benchmark's factor; 1 if each rank communicates with itself only, which has one
        direction. None for several different operations, whose bytes share no path."""
        factor = None if self.operation is None else self.benchmark.bus_factor(self.case, self.size)
        alone = self.case.pairs and all(first == second for first, second in self.case.pairs)
        return 1.0 if alone and factor is not None else factor

    @property
    def messages_per_peer(self) -> int:
        """The largest number of messages to one peer that the initiator posts before it waits."""
        most = 0
        posted = Counter[int]()
        program = self.program(self.senders[0]) if self.active else Program()
        for step in program.from_lead:
            if isinstance(step, WaitAll):
                most = max(most, *posted.values(), 0)
                posted = Counter()
            elif isinstance(step, Start) and isinstance(step.step, Send):
                posted[step.step.peer] += 1
        return most
