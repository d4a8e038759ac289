"""When the operations of a workload begin and end, if each takes a known time."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .scaling import ScaledWorkload
from .workload import Workload, WorkloadCall, WorkloadOperation, runs_beside_next

MOST_NAMED_RANKS = 4
Calls = Workload | ScaledWorkload


class WaitsForever(Exception):
    """Ranks of a workload wait for each other; says which, and in which operations."""


@dataclass(eq=False)
class ScheduledOperation:
    """One run of an operation: it begins when the last of its `ranks` calls it. `sender`: of a
    message, None for a collective."""

    number: int
    ranks: tuple[int, ...]
    sender: int | None
    duration_s: float
    begin_s: float = 0.0
    called: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    @property
    def has_begun(self) -> bool:
        return len(self.called) == len(self.ranks)

    @property
    def end_s(self) -> float:
        return self.begin_s + self.duration_s


def schedule(workload: Calls, durations_s: Mapping[int, float]) -> list[ScheduledOperation]:
    """All operations of all steps, in the order in which they begin. `durations_s` is by number of
    the operation, 0 for others. A send ends without its receive, as small ones do. Raises
    WaitsForever."""
    run = _Run(workload, durations_s)
    calls = {rank: order.calls for order in workload.orders for rank in order.ranks}
    ranks = {rank: run.of_rank(rank, calls[rank]) for rank in sorted(calls)}
    run.ready.extend(ranks)
    waits: dict[int, ScheduledOperation] = {}
    while run.ready:
        rank = run.ready.popleft()
        waits.pop(rank, None)
        for operation in ranks[rank]:
            if not operation.has_begun:
                operation.waiting.append(rank)
                waits[rank] = operation
                break
    if waits:
        raise WaitsForever(_circle_text(workload, waits))
    return sorted(run.operations, key=lambda operation: operation.begin_s)


class _Run:
    """Ranks that call their operations; `ready` can go on."""

    def __init__(self, workload: Calls, durations_s: Mapping[int, float]) -> None:
        self.operations: list[ScheduledOperation] = []
        self.ready: deque[int] = deque()
        self._workload = workload
        self._durations_s = durations_s
        self._runs: dict[int, list[ScheduledOperation]] = defaultdict(list)
        self._calls: Counter[tuple[int, int]] = Counter()

    def of_rank(self, rank: int, calls: Sequence[WorkloadCall]) -> Iterator[ScheduledOperation]:
        """The operations that the rank waits for, one after another; it goes on when that one has
        begun, because then its end is known."""
        now_s = 0.0
        running: deque[ScheduledOperation] = deque()
        for place, call in enumerate(calls):
            while len(running) > call.concurrent:
                earlier = running.popleft()
                if earlier.sender != rank:
                    yield earlier
                now_s = max(now_s, earlier.end_s)
            now_s += call.gap_s or 0.0
            operation = self._call(rank, call.operation, now_s)
            now_s += call.beside_s or 0.0
            if runs_beside_next(calls, place):
                running.append(operation)
                continue
            if operation.sender != rank:
                yield operation
            now_s = max(now_s, operation.end_s)

    def _call(self, rank: int, number: int, now_s: float) -> ScheduledOperation:
        """The run of the operation that this call of the rank is part of."""
        runs = self._runs[number]
        place = self._calls[rank, number]
        self._calls[rank, number] += 1
        if place == len(runs):
            kind = self._workload.operations[number]
            duration_s = self._durations_s.get(number, 0.0)
            ranks = _ranks_of(self._workload, kind)
            sender = None if kind.peers is None else ranks[0]
            runs.append(ScheduledOperation(number, ranks, sender, duration_s))
            self.operations.append(runs[-1])
        operation = runs[place]
        operation.called.append(rank)
        operation.begin_s = max(operation.begin_s, now_s)
        if operation.has_begun:
            self.ready.extend(operation.waiting)
            operation.waiting.clear()
        return operation


def _ranks_of(workload: Calls, kind: WorkloadOperation) -> tuple[int, ...]:
    group = workload.groups[kind.group]
    return group if kind.peers is None else tuple(group[peer] for peer in kind.peers)


def _circle_text(workload: Calls, waits: Mapping[int, ScheduledOperation]) -> str:
    """Ranks that wait for each other, from a rank to the next until one comes again."""
    rank = min(waits)
    path: list[int] = []
    while rank in waits and rank not in path:
        path.append(rank)
        rank = next(each for each in waits[rank].ranks if each not in waits[rank].called)
    circle = path[path.index(rank) :] if rank in path else path
    shown = circle[:MOST_NAMED_RANKS]
    words = [
        f"rank {each} in operation {waits[each].number}"
        f" ({workload.operations[waits[each].number].operation})"
        for each in shown
    ]
    more = f", and {len(circle) - len(shown)} more" if len(circle) > len(shown) else ""
    return f"these ranks would wait for each other forever: {', '.join(words)}{more}"
