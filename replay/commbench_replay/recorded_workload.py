"""The workload of a job that was traced: its operations, and when each rank calls them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from commbench.core.errors import Unreadable
from commbench.core.units import format_ranges

from .busy_times import BusyTimes
from .operations import RecordedCall
from .training_job import Collective, TrainingJob
from .workload import (
    GAPS_UNKNOWN,
    REDUCTION_UNKNOWN,
    ROOTS_UNKNOWN,
    SEND_RECV,
    SPLITS_UNKNOWN,
    STEPS_UNKNOWN,
    TIMES_UNKNOWN,
    UNKNOWNS,
    RankOrder,
    Workload,
    WorkloadCall,
    WorkloadOperation,
)


def workload_of(job: TrainingJob) -> Workload:
    """Raises Unreadable where the traces do not say what a replay needs."""
    check_exportable(job)
    groups: dict[tuple[int, ...], int] = {}
    kinds: dict[WorkloadOperation, list[Collective]] = defaultdict(list)
    kind_of: dict[int, WorkloadOperation] = {}
    for collective in job.collectives:
        ranks = collective.group.ranks or ()
        kind = _operation_kind(collective, groups.setdefault(ranks, len(groups)))
        kinds[kind].append(collective)
        kind_of.update((id(call), kind) for call in collective.calls)
    index = {kind: number for number, kind in enumerate(kinds)}
    orders: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in job.ranks:
        orders[tuple(index[kind_of[id(call)]] for call in job.calls[rank])].append(rank)
    return Workload(
        job.world_size or len(job.ranks),
        tuple(groups),
        tuple(_with_time(kind, collectives) for kind, collectives in kinds.items()),
        tuple(_rank_order(order, ranks, job) for order, ranks in orders.items()),
        max(job.steps, 1),
        job.step_s,
        _unknowns(job),
    )


def check_exportable(job: TrainingJob) -> None:
    """Raises Unreadable unless every rank, the ranks of every group, and the bytes of every call
    are known."""
    missing = (job.world_size or len(job.ranks)) - len(job.ranks)
    if missing:
        raise Unreadable(
            f"{missing} of {job.world_size} ranks have no trace, so what they do is not known;"
            " name the traces of all ranks"
        )
    calls = [call for rank_calls in job.calls.values() for call in rank_calls]
    if not calls:
        found = "no communication that could be read" if job.notes else "no communication"
        raise Unreadable(f"the traces have {found}, so there is nothing to export")
    lacking = {
        "the ranks of its group": sum(call.group.ranks is None for call in calls),
        "its bytes": sum(call.input_bytes is None or call.output_bytes is None for call in calls),
        "its type of elements": sum(
            call.dtype is None and call.input_bytes != 0 and call.output_bytes != 0
            for call in calls
        ),
        "the other side": sum(call.is_point_to_point and call.peer is None for call in calls),
    }
    for what, count in lacking.items():
        if count:
            raise Unreadable(
                f"{count} of {len(calls)} operations do not say {what}, which a replay needs;"
                " docs/workloads.md says how to record it"
            )
    partial = [collective for collective in job.collectives if not collective.complete]
    if partial:
        group = format_ranges(partial[0].group.ranks or ())
        raise Unreadable(
            f"{len(partial)} of {len(job.collectives)} operations lack a rank of their group, first"
            f" {partial[0].operation} of ranks {group}; record the same steps on all ranks"
        )


def _operation_kind(collective: Collective, group: int) -> WorkloadOperation:
    calls = sorted(collective.calls, key=lambda call: call.rank)
    first = calls[0]
    if first.is_point_to_point:
        ranks = collective.group.ranks or ()
        sender = next(call for call in calls if call.operation == "send")
        peers = (ranks.index(sender.rank), sender.peer or 0)
        sent = sender.input_bytes or 0
        return WorkloadOperation(group, SEND_RECV, first.dtype, (sent,), (sent,), peers=peers)
    counts = [call.send_counts for call in calls if call.send_counts is not None]
    roots = {call.root for call in calls}
    return WorkloadOperation(
        group,
        first.operation,
        next((call.dtype for call in calls if call.dtype is not None), None),
        _once([call.input_bytes or 0 for call in calls]),
        _once([call.output_bytes or 0 for call in calls]),
        tuple(counts) if len(counts) == len(calls) else None,
        roots.pop() if len(roots) == 1 else None,
    )


def _once(numbers: Sequence[int]) -> tuple[int, ...]:
    """A single number where all are alike."""
    return tuple(numbers[:1]) if len(set(numbers)) == 1 else tuple(numbers)


def _with_time(kind: WorkloadOperation, collectives: Sequence[Collective]) -> WorkloadOperation:
    times = [collective.job_ns for collective in collectives if collective.job_ns is not None]
    if not times:
        return kind
    bound = any(collective.is_bound for collective in collectives)
    return replace(kind, job_s=round(median(times) / 1e9, 9), is_bound=bound)


@dataclass(frozen=True)
class _CallPlace:
    """When a rank makes a call: fields of a WorkloadCall."""

    gap_s: float
    concurrent: int
    beside_s: float | None


def _places(
    calls: Sequence[RecordedCall],
    computing: BusyTimes | None,
    window_ns: tuple[int, int] | None,
) -> list[_CallPlace | None]:
    """Of each call of a rank; None where times are not known."""
    result: list[_CallPlace | None] = []
    running_ends: list[int] = []
    last_end_ns = None
    for call, next_ns in zip(calls, _next_starts(calls), strict=True):
        if call.start_ns is None or call.end_ns is None:
            result.append(None)
            continue
        start_ns = call.start_ns
        running_ends = [end_ns for end_ns in running_ends if end_ns > start_ns]
        if last_end_ns is None:
            gap_ns = _outside_ns(calls, window_ns)
        else:
            gap_ns = max(0, start_ns - last_end_ns)
        concurrent = len(running_ends)
        running_ends.append(call.end_ns)
        last_end_ns = max(call.end_ns, last_end_ns or 0)
        beside_s = None
        if computing is not None:
            until_ns = last_end_ns if next_ns is None else min(next_ns, last_end_ns)
            beside_s = computing.within(start_ns, until_ns) / 1e9
        result.append(_CallPlace(gap_ns / 1e9, concurrent, beside_s))
    return result


def _outside_ns(calls: Sequence[RecordedCall], window_ns: tuple[int, int] | None) -> int:
    """The time of the steps before the first call and after the last one, which follow one another
    where steps are repeated; 0 where it is not known."""
    if window_ns is None:
        return 0
    first_ns = min(call.start_ns for call in calls if call.start_ns is not None)
    last_ns = max(call.end_ns for call in calls if call.end_ns is not None)
    return max(0, first_ns - window_ns[0]) + max(0, window_ns[1] - last_ns)


def _next_starts(calls: Sequence[RecordedCall]) -> list[int | None]:
    """For each call, when the next one with a known time starts; None after that."""
    starts: list[int | None] = []
    next_ns = None
    for call in reversed(calls):
        starts.append(next_ns)
        next_ns = next_ns if call.start_ns is None else call.start_ns
    return starts[::-1]


def _rank_order(order: Sequence[int], ranks: Sequence[int], job: TrainingJob) -> RankOrder:
    """The order that some ranks share, with the medians of when they make each call."""
    of_ranks = [
        _places(job.calls[rank], job.computing.get(rank), job.windows_ns.get(rank))
        for rank in ranks
    ]
    calls = []
    for operation, places in zip(order, zip(*of_ranks, strict=True), strict=True):
        known = [place for place in places if place is not None]
        beside_s = [place.beside_s for place in known if place.beside_s is not None]
        if known:
            calls.append(
                WorkloadCall(
                    operation,
                    round(median(place.gap_s for place in known), 9),
                    median_low(place.concurrent for place in known),
                    round(median(beside_s), 9) if len(beside_s) == len(known) else None,
                )
            )
        else:
            before = _begun_with(job.calls[ranks[0]], len(calls))
            calls.append(WorkloadCall(operation, concurrent=before))
    return RankOrder(tuple(ranks), tuple(calls))


def _begun_with(calls: Sequence[RecordedCall], place: int) -> int:
    """How many calls right before this one are of its batch."""
    batch = calls[place].batch
    first = place
    while batch is not None and first > 0 and calls[first - 1].batch == batch:
        first -= 1
    return place - first


def _unknowns(job: TrainingJob) -> tuple[str, ...]:
    calls = [call for rank_calls in job.calls.values() for call in rank_calls]
    untimed = any(call.start_ns is None or call.end_ns is None for call in calls)
    splits = any(call.operation == "all_to_all_v" and call.send_counts is None for call in calls)
    unknown = {
        GAPS_UNKNOWN: untimed,
        REDUCTION_UNKNOWN: REDUCTION_UNKNOWN in job.unknown,
        ROOTS_UNKNOWN: ROOTS_UNKNOWN in job.unknown,
        SPLITS_UNKNOWN: splits,
        STEPS_UNKNOWN: not job.steps,
        TIMES_UNKNOWN: any(call.duration_ns is None for call in calls),
    }
    return tuple(name for name in UNKNOWNS if unknown[name])
