"""What a job communicates: its operations, and the order in which each rank calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from commbench.core.units import format_seconds

from .operations import OPERATIONS, POINT_TO_POINT

# what a workload may not say; the measuring side decides what it does then
GAPS_UNKNOWN = "gaps"
ROOTS_UNKNOWN = "roots"
REDUCTION_UNKNOWN = "reduction"
SPLITS_UNKNOWN = "splits"
STEPS_UNKNOWN = "steps"
TIMES_UNKNOWN = "times"
SEND_RECV = "send_recv"
WORKLOAD_OPERATIONS = (
    *(name for name in OPERATIONS if name not in POINT_TO_POINT),
    SEND_RECV,
)
UNKNOWNS = (
    *(GAPS_UNKNOWN, REDUCTION_UNKNOWN, ROOTS_UNKNOWN, SPLITS_UNKNOWN, STEPS_UNKNOWN),
    TIMES_UNKNOWN,
)


@dataclass(frozen=True)
class WorkloadOperation:
    """One kind of operation on a group. `input_bytes` and `output_bytes` have a number for each
    rank of the group, or a single one for all of them; `counts` the elements from each rank of the
    group to each, where they are known. `root`, and the `peers` of a send_recv, are ranks in the
    group. `job_s` is its time without waiting, where it is known; `is_bound`: at most that."""

    group: int
    operation: str
    dtype: str | None
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...] | None = None
    root: int | None = None
    peers: tuple[int, int] | None = None
    job_s: float | None = None
    is_bound: bool = False

    @property
    def largest_bytes(self) -> int:
        """Of a rank's larger buffer, which is what its benchmark calls the size of a message."""
        return max(*self.input_bytes, *self.output_bytes)


@dataclass(frozen=True)
class WorkloadCall:
    """`operation` is an index. `gap_s`: from the end of the calls before it to its start, 0 where
    it starts while `concurrent` of them still run. `beside_s`: how long the rank computes from its
    start until the next call, while it or an earlier one runs. None is not known."""

    operation: int
    gap_s: float | None = None
    concurrent: int = 0
    beside_s: float | None = None


@dataclass(frozen=True)
class RankOrder:
    """The calls of some ranks, in their order."""

    ranks: tuple[int, ...]
    calls: tuple[WorkloadCall, ...]


@dataclass(frozen=True)
class Workload:
    """All of a job's communication in `steps` steps; `step_s` is the time of one. Where the source
    does not mark steps, the whole recording counts as one."""

    ranks: int
    groups: tuple[tuple[int, ...], ...]
    operations: tuple[WorkloadOperation, ...]
    orders: tuple[RankOrder, ...]
    steps: int = 1
    step_s: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What times are given for."""
        return "the recording" if STEPS_UNKNOWN in self.unknown else "a step"

    @property
    def job_s(self) -> float | None:
        """The time of a step's operations in the job, without waiting, of the rank with most; None
        where one is not known or only an upper bound."""
        if any(each.job_s is None or each.is_bound for each in self.operations):
            return None
        totals = [
            sum(self.operations[call.operation].job_s or 0.0 for call in order.calls)
            for order in self.orders
        ]
        return max(totals, default=0.0) / self.steps

    @property
    def times_text(self) -> str:
        """`16 ms, communication without waiting 207 us`: what is known of the job's own times."""
        times_s = {"": self.step_s, "communication without waiting ": self.job_s}
        return ", ".join(
            f"{name}{format_seconds(time_s)}"
            for name, time_s in times_s.items()
            if time_s is not None
        )


def runs_beside_next(calls: Sequence[WorkloadCall], place: int) -> bool:
    """Whether the next call begins before this one has ended."""
    return place + 1 < len(calls) and calls[place + 1].concurrent > 0


def first_alike(workload: Workload) -> dict[int, int]:
    """For each operation the number of the first that is like it: with the same bytes and type, in
    a group whose ranks lie alike. That one is measured alone for all of them."""
    first: dict[tuple[object, ...], int] = {}
    alike = {}
    for number, operation in enumerate(workload.operations):
        group = workload.groups[operation.group]
        distances = tuple(rank - group[0] for rank in group)
        kind = replace(operation, group=0, job_s=None, is_bound=False)
        alike[number] = first.setdefault((kind, distances), number)
    return alike
