"""The simulated engine: all ranks of a program in one process, on a virtual clock.

Times are vectors over the repetitions of a block, so the cost grows with ranks x steps and not with
repetitions. The payload is really moved, once per copy of the pool.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import HostBuffer, rotation_pool
from commbench.core import program as steps
from commbench.core.errors import CommunicationError, ConfigError, Unsupported
from commbench.core.program import Compute, Group, In, Operation, Program, Step, View
from commbench.core.variables import ReductionName
from commbench.engines.lowered import displacements

VirtualTimes = NDArray[np.float64]
Words = NDArray[Any]  # [copies of the pool, elements] of a view

NUMPY_REDUCTIONS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "sum": lambda stack: stack.sum(axis=0),
    "avg": lambda stack: stack.sum(axis=0) / len(stack),
    "prod": lambda stack: stack.prod(axis=0),
    "max": lambda stack: stack.max(axis=0),
    "min": lambda stack: stack.min(axis=0),
}


Buffers = Mapping[int, Mapping[str, HostBuffer]]
BLOCKING = -1  # the request of the operation that a rank waits for


@dataclass(frozen=True)
class Model:
    """The planted truth. Times in seconds, bandwidth in GB/s (10^9 B/s) per direction of a pair.

    noise: standard deviation of the logarithm of a repetition's duration; rho: its lag-1
    autocorrelation. A straggler arrives `straggler_s` late in one of `straggler_every` repetitions.
    From repetition `corrupt_after` on, `corrupt_rank` receives one wrong element.

    Factors multiply the latency and the wire time of single links: `slow_factor` from the first to
    the second rank of `slow_pair` ("0-2", one direction) and on all links of `slow_rank`,
    `other_node_factor` between nodes. Ranks are those of the layout. The slowest link of the ring
    over its ranks sets the pace of a collective.

    Operations that a rank has started go on at `progress_share` of their speed while it computes
    (1: the computation hides them, 0: they wait), and it computes `compute_factor` times longer.
    """

    latency_s: float = 2e-6
    bandwidth_gb_per_s: float = 10.0
    call_s: float = 1e-7
    copy_gb_per_s: float = 25.0  # of a copy within a rank, each direction
    matmul_gflop_per_s: float = 50.0
    noise: float = 0.0
    rho: float = 0.0
    straggler_rank: int | None = None
    straggler_every: int = 100
    straggler_s: float = 0.0
    corrupt_rank: int | None = None
    corrupt_after: int = 0
    slow_pair: str | None = None
    slow_rank: int | None = None
    slow_factor: float = 1.0
    other_node_factor: float = 1.0
    progress_share: float = 1.0
    compute_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.slow_pair is not None and not re.fullmatch(
            r"(0|[1-9]\d*)-(0|[1-9]\d*)", self.slow_pair
        ):
            raise ConfigError(
                f"slow_pair={self.slow_pair} is not a pair of ranks; write sender-receiver,"
                " e.g. 0-2"
            )
        if not 0 <= self.progress_share <= 1:
            raise ConfigError(f"progress_share={self.progress_share} is no share; give 0 to 1")
        for name in ("slow_factor", "other_node_factor", "compute_factor"):
            factor = getattr(self, name)
            if not 0 < factor < math.inf:
                raise ConfigError(
                    f"{name}={factor} is not a valid factor; give a number above 0 (1 changes"
                    " nothing)"
                )

    @property
    def planted_ranks(self) -> list[tuple[str, int]]:
        """Each rank that a field names, with the field."""
        named = [
            (name, getattr(self, name)) for name in ("straggler_rank", "corrupt_rank", "slow_rank")
        ]
        of_pair = [("slow_pair", int(rank)) for rank in (self.slow_pair or "").split("-") if rank]
        return [(name, rank) for name, rank in named if rank is not None] + of_pair

    def link_factor(self, sender: int, receiver: int, same_node: bool) -> float:
        """How many times slower this direction of a link is than planted for all links."""
        slow = self.slow_pair == f"{sender}-{receiver}" or self.slow_rank in (sender, receiver)
        return (self.slow_factor if slow else 1.0) * (1.0 if same_node else self.other_node_factor)

    def message_s(self, message_bytes: int) -> float:
        """Time on the wire, without latency."""
        return message_bytes / (self.bandwidth_gb_per_s * 1e9)

    def compute_s(self, step: Compute) -> float:
        """The time of a computation without communication beside it."""
        match step:
            case steps.Sleep(duration_ns) | steps.MatmulFor(_, duration_ns):
                return duration_ns * 1e-9
            case steps.MemoryStream(size_bytes):
                return size_bytes / (self.copy_gb_per_s * 1e9)
            case steps.Matmul(size, repetitions):
                return repetitions * 2 * size**3 / (self.matmul_gflop_per_s * 1e9)

    def collective_s(self, step: Step, size: int, message_bytes: int) -> float:
        """Textbook costs: rings for reductions and gathers, binomial trees from a root,
        dissemination barrier."""
        if size == 1:
            return self.call_s
        rounds = math.ceil(math.log2(size))
        if isinstance(step, steps.Barrier):
            return rounds * self.latency_s
        if isinstance(step, steps.Broadcast | steps.Reduce):
            return rounds * (self.latency_s + self.message_s(message_bytes))
        factor = 2 if isinstance(step, steps.AllReduce) else 1
        return factor * (size - 1) * (self.latency_s + self.message_s(message_bytes) / size)


class VirtualRunner:
    """See Runner; hosts all ranks of its programs. Stamps are virtual nanoseconds.

    `nodes` holds the node of each rank; if it is empty, all ranks are on one node.
    """

    calls: tuple[str, ...] = ()

    def __init__(
        self,
        programs: Mapping[int, Program],
        buffers: Buffers,
        model: Model,
        seed: int,
        nodes: Sequence[int] = (),
    ) -> None:
        self.progress = np.zeros(2, dtype=np.int64)
        self._programs = programs
        self._buffers = buffers
        self._model = model
        self._nodes = tuple(nodes) or (0,) * (max(programs) + 1)
        self._random = np.random.default_rng(seed)
        self._noise_state = float(self._random.standard_normal())
        self._now_s = 0.0
        self._done = 0
        # of the last block: the copies and contents that it moved, and its times without noise
        self._last: tuple[int, int, VirtualTimes] | None = None

    def __call__(self, n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        if starts is not None:
            raise Unsupported(
                "the simulated engine does not take start instants: its ranks all begin together"
            )
        delays: dict[int, VirtualTimes] = {}
        if self._model.straggler_rank is not None:
            every = self._model.straggler_every
            index = np.arange(self._done, self._done + n)
            delays[self._model.straggler_rank] = (
                index % every == every - 1
            ) * self._model.straggler_s
        times = self._times(delays, copies=min(n, self._pool)) * self._noise_factors(n)
        corrupt_rank = self._model.corrupt_rank
        if corrupt_rank is not None and self._done + n > self._model.corrupt_after:
            self._corrupt(corrupt_rank)
        durations = times[1].max(axis=0)
        begins = self._now_s + np.concatenate(([0.0], np.cumsum(durations)[:-1]))
        self._now_s += float(durations.sum())
        self._done += n
        self.progress[:] = n, 0
        return np.rint(np.moveaxis(begins + times, 0, 2) * 1e9).astype(np.int64)

    def _times(self, delays: Mapping[int, VirtualTimes], copies: int) -> VirtualTimes:
        """See VirtualBlock.run, for n or 1 repetitions. A block is not run again if it would move
        the same bytes in the same time."""
        writes = self._writes
        if self._last is not None and self._last[0] >= copies and self._last[1] == writes:
            return self._last[2]
        times = self._run(delays, copies)
        is_repeatable = not delays and self._model.corrupt_rank is None
        if is_repeatable and self._reads_what_is_not_written:
            self._last = copies, writes, times
        return times

    @property
    def _pool(self) -> int:
        """How many copies the programs rotate through."""
        return max(map(rotation_pool, self._buffers.values()), default=1)

    @property
    def _writes(self) -> int:
        """How often the contents of buffers were set."""
        return sum(buffer.writes for own in self._buffers.values() for buffer in own.values())

    def _corrupt(self, rank: int) -> None:
        """Make the first element that the rank has received wrong."""
        for name, buffer in self._buffers.get(rank, {}).items():
            if name in ("recv", "data"):
                buffer.words()[0] += 1

    def _run(self, delays: Mapping[int, VirtualTimes], copies: int) -> VirtualTimes:
        """See VirtualBlock.run."""
        return VirtualBlock(
            self._programs, self._buffers, self._model, self._nodes, delays, copies
        ).run()

    @cached_property
    def _reads_what_is_not_written(self) -> bool:
        """Whether the programs only pass messages, and no buffer that receives is also sent."""
        for program in self._programs.values():
            sent = set()
            received = set()
            for step in map(steps.operation_of, (*program.reset, *program.from_lead)):
                if isinstance(step, steps.Send):
                    sent.add(step.data.buffer)
                elif isinstance(step, steps.Recv):
                    received.add(step.data.buffer)
                elif not isinstance(step, steps.WaitAll):
                    return False
            if sent & received:
                return False
        return True

    def _noise_factors(self, n: int) -> VirtualTimes:
        """A log-normal AR(1) series that continues from block to block; 1 without noise."""
        if self._model.noise == 0:
            return np.ones(n)
        rho = self._model.rho
        shocks = (self._random.standard_normal(n) * math.sqrt(1 - rho**2)).tolist()
        values = [
            *accumulate(shocks, lambda state, shock: rho * state + shock, initial=self._noise_state)
        ]
        self._noise_state = values[-1]
        return np.exp(self._model.noise * np.array(values[1:]))


@dataclass
class Meeting:
    """A collective: the step of each rank that has arrived, the time at which the last of them did,
    and the time at which it ends, once all have arrived with the same operation."""

    arrived: dict[int, Any] = field(default_factory=dict)
    latest_s: Any = 0.0
    end_s: Any = None


@dataclass
class VirtualBlock:
    """One pass over the programs of all ranks.

    `clock[rank]` is a vector of seconds since the repetition began, `begins[rank]` and `ends[rank]`
    what it was before and after the timed steps, `todo[rank]` holds the steps that are left,
    `in_flight` messages with their arrival times by (sender, receiver), `link_free_s` when that
    link can take the next one, `calls` by ranks and rank the collectives of these that it has
    joined so far, `meetings` each of them by its number, `requests` by (rank, request) a pending
    receive or collective, or the time at which a send or copy ends. `computed_s` is how long a rank
    has computed so far, `computed_before` what that was when a request was started.
    """

    programs: Mapping[int, Program]
    buffers: Buffers
    model: Model
    nodes: Sequence[int]
    delays: Mapping[int, VirtualTimes]
    copies: int
    clock: dict[int, Any] = field(default_factory=dict)
    begins: dict[int, Any] = field(default_factory=dict)
    ends: dict[int, Any] = field(default_factory=dict)
    todo: dict[int, deque[Step]] = field(default_factory=dict)
    in_flight: dict[tuple[int, int], deque[tuple[Any, Words]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    link_free_s: dict[tuple[int, int], Any] = field(default_factory=dict)
    calls: dict[tuple[Group, int], int] = field(default_factory=lambda: defaultdict(int))
    meetings: dict[tuple[Group, int], Meeting] = field(default_factory=lambda: defaultdict(Meeting))
    requests: dict[tuple[int, int], Any] = field(default_factory=dict)
    computed_s: dict[int, float] = field(default_factory=dict)
    computed_before: dict[tuple[int, int], float] = field(default_factory=dict)

    def run(self) -> VirtualTimes:
        """Seconds [2, ranks, n] from the start of a repetition to the begin and end of the timed
        steps of each rank. A rank without a lead begins with the repetition, also one that is
        late."""
        self.run_steps()
        times = [
            np.atleast_1d(seconds.get(rank, 0.0))
            for seconds in (self.begins, self.ends)
            for rank in sorted(self.programs)
        ]
        same_length = np.stack(np.broadcast_arrays(*times))
        return same_length.reshape(2, len(self.programs), -1)

    def run_steps(self) -> None:
        """Run the programs to their end. Raises CommunicationError where that is impossible."""
        for rank, program in sorted(self.programs.items()):
            if program.steps:
                self.clock[rank] = self.delays.get(rank, 0.0)
                self.todo[rank] = deque(program.from_lead)
                for step in program.reset:
                    self._copy(rank, step)
        while waiting := [rank for rank, steps_left in self.todo.items() if steps_left]:
            if not sum(self._advance(rank) for rank in waiting):
                raise CommunicationError(f"deadlock: ranks {waiting} wait for one another")

    def _advance(self, rank: int) -> bool:
        """Run steps of the rank until it has to wait for others; returns whether it ran any."""
        todo = self.todo[rank]
        before = len(todo)
        program = self.programs[rank]
        while todo and self._try(rank, todo[0]):
            todo.popleft()
            if len(todo) == len(program.steps) + len(program.after):
                self.begins[rank] = self.clock[rank]
            if len(todo) == len(program.after):
                self.ends[rank] = self.clock[rank]
        return len(todo) < before

    def _try(self, rank: int, step: Step) -> bool:
        """Run a step; returns False if the rank has to wait for others first."""
        match step:
            case steps.WaitAll(requests):
                # those that are complete are not there when the wait is tried again
                return all(self._complete(rank, request) for request in requests)
            case steps.Start(operation, request):
                self.requests[rank, request] = self._begin(rank, operation)
                self.computed_before[rank, request] = self.computed_s.get(rank, 0.0)
                self.clock[rank] = self.clock[rank] + self.model.call_s
                return True
            case _:
                if (rank, BLOCKING) not in self.requests:
                    self.requests[rank, BLOCKING] = self._begin(rank, step)
                return self._complete(rank, BLOCKING)

    def _begin(self, rank: int, step: Operation | Compute | In, group: Group | None = None) -> Any:
        """Begin an operation; returns what `requests` keeps of it."""
        match step:
            case steps.In(ranks, operation):
                return self._begin(rank, operation, ranks)
            case steps.Send(data, peer):
                return self._start_send(rank, peer if group is None else group[peer], data)
            case steps.Recv(data, peer):
                return step if group is None else steps.Recv(data, group[peer])
            case steps.Copy():
                return self._start_copy(rank, step)
            case _ if isinstance(step, steps.Compute):
                return self._compute(rank, step)
            case _:
                return self._arrive(rank, step, tuple(self.todo) if group is None else group)

    def _compute(self, rank: int, step: Compute) -> Any:
        """Returns the time at which the computation ends."""
        is_beside = any(of_rank == rank for of_rank, _ in self.requests)
        duration_s = self.model.compute_s(step) * (self.model.compute_factor if is_beside else 1.0)
        self.computed_s[rank] = self.computed_s.get(rank, 0.0) + duration_s
        return self.clock[rank] + duration_s

    def _delay_s(self, rank: int, request: int) -> float:
        """How much later an operation ends because its rank has computed since it was started. One
        that ended before does not end later, but then the rank is beyond that time, too."""
        before_s = self.computed_before.get((rank, request))
        if before_s is None:
            return 0.0
        computed_s = self.computed_s.get(rank, 0.0) - before_s
        return (1.0 - self.model.progress_share) * computed_s

    def _complete(self, rank: int, request: int) -> bool:
        """Wait for an operation; returns False if others have to do something first."""
        pending = self.requests.get((rank, request), self.clock[rank])
        delay_s = self._delay_s(rank, request)
        if isinstance(pending, steps.Recv):
            if not self._receive(rank, pending.peer, pending.data, delay_s):
                return False
        elif not isinstance(pending, Meeting):
            self.clock[rank] = np.maximum(self.clock[rank], pending + delay_s)
        elif pending.end_s is None:
            return False
        else:
            self.clock[rank] = np.maximum(self.clock[rank], pending.end_s + delay_s)
        self.requests.pop((rank, request), None)
        return True

    def _start_send(self, rank: int, peer: int, view: View) -> Any:
        """Put a message on the link; returns the time at which the sender's buffer is free
        again."""
        payload = self.words(rank, view).copy()
        factor = self._link_factor(rank, peer)
        begin = np.maximum(
            self.clock[rank] + self.model.call_s, self.link_free_s.get((rank, peer), 0.0)
        )
        free = begin + factor * self.model.message_s(payload.shape[-1] * payload.itemsize)
        self.link_free_s[rank, peer] = free
        self.in_flight[rank, peer].append((free + factor * self.model.latency_s, payload))
        return free

    def _link_factor(self, sender: int, receiver: int) -> Any:
        return self.model.link_factor(sender, receiver, self.nodes[sender] == self.nodes[receiver])

    def _receive(self, rank: int, peer: int, view: View, delay_s: float) -> bool:
        if not self.in_flight[peer, rank]:
            return False
        arrival, payload = self.in_flight[peer, rank].popleft()
        self.words(rank, view)[:] = payload
        self.clock[rank] = np.maximum(self.clock[rank] + self.model.call_s, arrival + delay_s)
        return True

    def _arrive(self, rank: int, step: Operation, ranks: Group) -> Meeting:
        """Join the next collective of these ranks; the last to arrive runs it for all."""
        meeting = self.meetings[ranks, self.calls[ranks, rank]]
        self.calls[ranks, rank] += 1
        meeting.arrived[rank] = step
        meeting.latest_s = np.maximum(meeting.latest_s, self.clock[rank])
        alike = {type(other) for other in meeting.arrived.values()}
        if len(meeting.arrived) < len(ranks) or len(alike) > 1:
            return meeting
        message_bytes = self._move_payload(ranks, meeting.arrived)
        ring = zip(ranks, [*ranks[1:], ranks[0]], strict=True) if len(ranks) > 1 else ()
        pace = max((self._link_factor(*link) for link in ring), default=1.0)
        duration_s = pace * self.model.collective_s(step, len(ranks), message_bytes)
        meeting.end_s = meeting.latest_s + duration_s
        return meeting

    def _move_payload(self, ranks: Sequence[int], arrived: Mapping[int, Any]) -> int:
        """Run a collective, whose steps are given by rank; returns the bytes of its message."""
        first = arrived[ranks[0]]
        match first:
            case steps.Barrier():
                return 0
            case steps.AllReduce() | steps.Reduce() | steps.ReduceScatter():
                message = self._reduced(
                    [(rank, arrived[rank].send) for rank in ranks], first.reduction
                )
            case steps.AllToAllV():
                return self._move_blocks(ranks, arrived)
            case steps.Broadcast() | steps.Scatter():
                root = ranks[first.root]
                root_step = arrived[root]
                message = self.words(root, getattr(root_step, "send", None) or root_step.data)
            case _:
                sent = [self.words(rank, arrived[rank].send) for rank in ranks]
                message = np.concatenate(sent, axis=1)
        message_bytes: int = message[0].nbytes
        received = [message] * len(ranks)
        if isinstance(first, steps.Scatter | steps.ReduceScatter):
            received = np.split(message, len(ranks), axis=1)
        elif isinstance(first, steps.AllToAll):
            sent_blocks = [np.split(words, len(ranks), axis=1) for words in sent]
            received = [np.concatenate(parts, axis=1) for parts in zip(*sent_blocks, strict=True)]
            message_bytes = sent[0][0].nbytes
        only_root = isinstance(first, steps.Reduce | steps.Gather)
        for rank, words in zip(ranks, received, strict=True):
            if not only_root or rank == ranks[first.root]:
                view = (
                    arrived[rank].data if isinstance(first, steps.Broadcast) else arrived[rank].recv
                )
                self.words(rank, view)[:] = words
        return message_bytes

    def _move_blocks(self, ranks: Sequence[int], arrived: Mapping[int, Any]) -> int:
        """Run an AllToAllV; returns the bytes that the busiest rank sends or receives."""
        blocks = {}
        for rank in ranks:
            step = arrived[rank]
            words = self.words(rank, step.send)[:, : sum(step.send_counts)]
            blocks[rank] = np.split(words, displacements(step.send_counts)[1:], axis=1)
        busiest = 0
        for position, rank in enumerate(ranks):
            step = arrived[rank]
            parts = [blocks[sender][position] for sender in ranks]
            sent = tuple(part.shape[1] for part in parts)
            if sent != step.recv_counts:
                raise CommunicationError(
                    f"rank {rank} receives blocks of {step.recv_counts} elements, the others send"
                    f" it {sent}"
                )
            received = np.concatenate(parts, axis=1)
            self.words(rank, step.recv)[:, : sum(sent)] = received
            busiest = max(busiest, received.shape[1], sum(step.send_counts))
        return busiest * self.buffers[ranks[0]][arrived[ranks[0]].recv.buffer].dtype.itemsize

    def _reduced(self, sources: Sequence[tuple[int, View]], reduction: ReductionName) -> Words:
        rank, view = sources[0]
        kind = self.buffers[rank][view.buffer].dtype
        parts = [self.words(*source) for source in sources]
        stacks = (
            np.stack([kind.decode(part[copy]) for part in parts]) for copy in range(len(parts[0]))
        )
        return np.stack([kind.encode(NUMPY_REDUCTIONS[reduction](stack)) for stack in stacks])

    def _start_copy(self, rank: int, step: steps.Copy) -> Any:
        """Returns the time at which the copy ends."""
        self._copy(rank, step)
        copied_bytes = self.words(rank, step.source)[0].nbytes
        return (
            self.clock[rank] + self.model.call_s + copied_bytes / (self.model.copy_gb_per_s * 1e9)
        )

    def _copy(self, rank: int, step: Step) -> None:
        """Move the payload of a copy; in a reset, this takes no time."""
        if not isinstance(step, steps.Copy):
            raise Unsupported(f"the simulated engine cannot reset with {type(step).__name__}")
        self.words(rank, step.target)[:] = self.words(rank, step.source)

    def words(self, rank: int, view: View) -> Words:
        """The elements of the view in each copy of the pool that this block uses."""
        buffer = self.buffers[rank][view.buffer]
        return buffer.words(view.slot, slice(self.copies))[:, view.elements]
