"""The simulated engine: all ranks in one process, each with a virtual clock.

The ranks run their programs in turn, each until it has to wait for another one: for a message, or
for the last rank of a collective. The model says what a step takes (model.py). Its payload is
really moved (payload.py), once per copy of the pool.

A clock is a vector: the seconds since the begin of a repetition, of all repetitions of a block. So
the cost grows with ranks x steps and not with repetitions.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import rotation_pool
from commbench.core import program as steps
from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.program import Compute, Group, In, Operation, Program, Step, View

from .model import Model
from .payload import Buffers, Payload, Words

VirtualTimes = NDArray[np.float64]
Seconds = Any  # one number for all repetitions of a block, or a vector with one for each
BLOCKING = -1  # the request of the operation that a rank waits for at once


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
        self._pool = max(map(rotation_pool, buffers.values()), default=1)
        self._model = model
        self._nodes = tuple(nodes) or (0,) * (max(programs) + 1)
        self._random = np.random.default_rng(seed)
        self._noise_state = float(self._random.standard_normal())
        self._now_s = 0.0
        self._done = 0  # repetitions

    def __call__(self, n: int) -> NDArray[np.int64]:
        copies = min(n, self._pool)
        payload = Payload(self._buffers, copies, self._model.order, self._done)
        world = VirtualWorld(self._model, self._nodes, payload)
        times = world.run(self._programs, self._delays(n)) * self._noise_factors(n)
        if self._model.corrupt_rank is not None:
            for repetition in range(n - copies, n):
                if self._done + repetition >= self._model.corrupt_after:
                    self._corrupt(self._model.corrupt_rank, repetition % self._pool)
        durations = times[1].max(axis=0)
        begins = self._now_s + np.concatenate(([0.0], np.cumsum(durations)[:-1]))
        self._now_s += float(durations.sum())
        self._done += n
        self.progress[:] = n, 0
        return np.rint(np.moveaxis(begins + times, 0, 2) * 1e9).astype(np.int64)

    def _delays(self, n: int) -> dict[int, VirtualTimes]:
        """How late the straggler is in each of the next repetitions."""
        model = self._model
        if model.straggler_rank is None:
            return {}
        number = np.arange(self._done, self._done + n)
        is_late = number % model.straggler_every == model.straggler_every - 1
        return {model.straggler_rank: is_late * model.straggler_s}

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

    def _corrupt(self, rank: int, copy: int) -> None:
        """Make the first element wrong that the rank has received in that copy."""
        for name, buffer in self._buffers.get(rank, {}).items():
            if name not in ("recv", "data"):
                continue
            words = buffer.words(copy=copy)
            if self._model.corrupt_bit is None:
                words[0] += 1
            else:
                words.view(f"u{words.itemsize}")[0] ^= 1 << self._model.corrupt_bit


@dataclass
class Meeting:
    """A collective: the step of each rank that has arrived, when the last of them did, and when it
    ends: None until all have arrived with the same operation."""

    arrived: dict[int, Any] = field(default_factory=dict)
    latest_s: Seconds = 0.0
    end_s: Seconds | None = None


@dataclass
class Pending:
    """An operation that a rank has begun: it ends with a message, with a meeting, or at a time that
    is known. The rank had computed for `computed_s` when it began."""

    until: steps.Recv | Meeting | Seconds
    computed_s: float


@dataclass
class VirtualRank:
    """A rank on its way through its program."""

    number: int
    program: Program
    clock: Seconds
    todo: deque[Step]  # the steps that are left
    # the clock before and after the timed steps
    begin_s: Seconds = 0.0
    end_s: Seconds = 0.0
    computed_s: float = 0.0  # how long it has computed
    pending: dict[int, Pending] = field(default_factory=dict)  # by request
    joined: dict[Group, int] = field(default_factory=lambda: defaultdict(int))  # its collectives


@dataclass
class VirtualWorld:
    """Runs the programs of all ranks once."""

    model: Model
    nodes: Sequence[int]
    payload: Payload
    active: dict[int, VirtualRank] = field(default_factory=dict)  # those that have steps
    # by sender and receiver: messages with the time of their arrival, and when the link is free
    in_flight: dict[tuple[int, int], deque[tuple[Seconds, Words]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    link_free_s: dict[tuple[int, int], Seconds] = field(default_factory=dict)
    # by group, and how many collectives it had before
    meetings: dict[tuple[Group, int], Meeting] = field(default_factory=lambda: defaultdict(Meeting))

    def run(self, programs: Mapping[int, Program], delays: Mapping[int, Seconds]) -> VirtualTimes:
        """Seconds [2, ranks, n] from the begin of a repetition to the begin and the end of each
        rank's timed steps; n is 1 if all repetitions take the same time. A rank without a lead
        begins with the repetition, also if it is late. Raises CommunicationError for programs that
        can't end."""
        for number, program in sorted(programs.items()):
            if program.steps:
                todo = deque(program.from_lead)
                self.active[number] = VirtualRank(number, program, delays.get(number, 0.0), todo)
                self._reset(number, program)
        while waiting := [rank for rank in self.active.values() if rank.todo]:
            if not sum(map(self._advance, waiting)):
                numbers = [rank.number for rank in waiting]
                raise CommunicationError(f"deadlock: ranks {numbers} wait for one another")
        idle = VirtualRank(-1, Program(), 0.0, deque())
        ranks = [self.active.get(number, idle) for number in sorted(programs)]
        times = [*(rank.begin_s for rank in ranks), *(rank.end_s for rank in ranks)]
        same_length = np.stack(np.broadcast_arrays(*map(np.atleast_1d, times)))
        return same_length.reshape(2, len(ranks), -1)

    def _reset(self, number: int, program: Program) -> None:
        """Restore the buffers that the steps change, which takes no time."""
        for step in program.reset:
            if not isinstance(step, steps.Copy):
                raise Unsupported(f"the simulated engine cannot reset with {type(step).__name__}")
            self.payload.copy(number, step)

    def _advance(self, rank: VirtualRank) -> bool:
        """Run steps until the rank has to wait for others; returns whether it ran any."""
        left_before = len(rank.todo)
        after = len(rank.program.after)
        while rank.todo and self._run_step(rank, rank.todo[0]):
            rank.todo.popleft()
            if len(rank.todo) == len(rank.program.steps) + after:
                rank.begin_s = rank.clock
            if len(rank.todo) == after:
                rank.end_s = rank.clock
        return len(rank.todo) < left_before

    def _run_step(self, rank: VirtualRank, step: Step) -> bool:
        """Returns False if the rank has to wait for others first; then the step is tried again."""
        match step:
            case steps.Start(operation, request):
                self._begin(rank, request, operation)
                rank.clock = rank.clock + self.model.call_s
                return True
            case steps.WaitAll(requests):
                return all(self._end(rank, request) for request in requests)
            case _:
                if BLOCKING not in rank.pending:
                    self._begin(rank, BLOCKING, step)
                return self._end(rank, BLOCKING)

    # ------------------------------------------------------------ the begin of an operation

    def _begin(self, rank: VirtualRank, request: int, step: Operation | Compute | In) -> None:
        group = None
        if isinstance(step, steps.In):
            group = step.group
            step = step.step
        if isinstance(step, steps.OwnStep):
            self._begin(rank, request, step.simulated)
            return
        until: Any
        match step:
            case steps.Send(data, peer):
                until = self._send(rank, peer if group is None else group[peer], data)
            case steps.Recv(data, peer):
                until = step if group is None else steps.Recv(data, group[peer])
            case steps.Copy():
                until = self._copy(rank, step)
            case _ if isinstance(step, steps.Compute):
                until = self._compute(rank, step)
            case _:
                until = self._join(rank, tuple(self.active) if group is None else group, step)
        rank.pending[request] = Pending(until, rank.computed_s)

    def _send(self, rank: VirtualRank, peer: int, view: View) -> Seconds:
        """Put a message on the link; returns when the sender's buffer is free again."""
        link = (rank.number, peer)
        factor = self._link_factor(*link)
        wire_s = factor * self.model.message_s(self.payload.bytes_of(rank.number, view))
        begin_s = np.maximum(rank.clock + self.model.call_s, self.link_free_s.get(link, 0.0))
        free_s = begin_s + wire_s
        arrival_s = free_s + factor * self.model.latency_s
        self.link_free_s[link] = free_s
        self.in_flight[link].append((arrival_s, self.payload.words(rank.number, view).copy()))
        return free_s

    def _copy(self, rank: VirtualRank, step: steps.Copy) -> Seconds:
        """Returns when the copy ends."""
        self.payload.copy(rank.number, step)
        copied_bytes = self.payload.bytes_of(rank.number, step.source)
        return rank.clock + self.model.call_s + self.model.copy_s(copied_bytes)

    def _compute(self, rank: VirtualRank, step: Compute) -> Seconds:
        """Returns when the computation ends."""
        beside_factor = self.model.compute_factor if rank.pending else 1.0
        duration_s = self.model.compute_s(step) * beside_factor
        rank.computed_s += duration_s
        return rank.clock + duration_s

    def _join(self, rank: VirtualRank, group: Group, step: Operation) -> Meeting:
        """Join the next collective of these ranks; the last to arrive runs it for all."""
        meeting = self.meetings[group, rank.joined[group]]
        rank.joined[group] += 1
        meeting.arrived[rank.number] = step
        meeting.latest_s = np.maximum(meeting.latest_s, rank.clock)
        kinds = {type(other) for other in meeting.arrived.values()}
        if len(meeting.arrived) == len(group) and len(kinds) == 1:
            message_bytes = self.payload.collective(group, meeting.arrived)
            duration_s = self.model.collective_s(step, len(group), message_bytes)
            meeting.end_s = meeting.latest_s + self._ring_factor(group) * duration_s
        return meeting

    def _ring_factor(self, group: Group) -> float:
        """That of the slowest link between neighbours, which sets the pace of a collective."""
        if len(group) == 1:
            return 1.0
        neighbours = zip(group, [*group[1:], group[0]], strict=True)
        return max(self._link_factor(*link) for link in neighbours)

    def _link_factor(self, sender: int, receiver: int) -> float:
        return self.model.link_factor(sender, receiver, self.nodes)

    # ------------------------------------------------------------ its end

    def _end(self, rank: VirtualRank, request: int) -> bool:
        """Move the clock to the end of an operation; returns False if that needs other ranks
        first."""
        pending = rank.pending.get(request)
        if pending is None:  # it ended when this wait was tried before
            return True
        end_s: Seconds | None = pending.until
        if isinstance(pending.until, steps.Recv):
            end_s = self._receive(rank, pending.until)
        elif isinstance(pending.until, Meeting):
            end_s = pending.until.end_s
        if end_s is None:
            return False
        rank.clock = np.maximum(rank.clock, end_s + self._postponed_s(rank, pending))
        del rank.pending[request]
        return True

    def _receive(self, rank: VirtualRank, step: steps.Recv) -> Seconds | None:
        """Take the next message of the peer; returns when it arrives, None if it is not sent."""
        messages = self.in_flight[step.peer, rank.number]
        if not messages:
            return None
        arrival_s, words = messages.popleft()
        self.payload.words(rank.number, step.data)[:] = words
        rank.clock = rank.clock + self.model.call_s
        return arrival_s

    def _postponed_s(self, rank: VirtualRank, pending: Pending) -> float:
        """How much later an operation ends because its rank has computed since it began. One that
        ended before does not end later, but then the rank is beyond that time, too."""
        return (1.0 - self.model.progress_share) * (rank.computed_s - pending.computed_s)
