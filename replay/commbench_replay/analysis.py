"""What a job's communication consists of, how long it took, and what hid it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from .busy_times import BusyTimes, Span, union_of
from .operations import RecordedCall
from .training_job import Collective, TrainingJob


@dataclass(frozen=True)
class Signature:
    """Operations that are alike. `calls` is of one rank; `input_bytes` the mean and `busiest_bytes`
    the most that a rank sends or receives in a call; `job_ns` the shortest and the longest of their
    times without waiting; None is not known. `total_ns` is over all calls of all ranks, and so is
    `waiting_ns`, of those that were matched. `exposed`: the share of the time in which a rank
    computed nothing, of the calls for which that is known. Neither is known where calls lack their
    times."""

    operation: str
    dtype: str | None
    groups: tuple[tuple[int, ...] | None, ...]
    group_size: int | None
    calls: int
    input_bytes: float | None
    busiest_bytes: int | None
    job_ns: tuple[int, int] | None
    is_bound: bool
    total_ns: int
    waiting_ns: int | None
    exposed: float | None


@dataclass(frozen=True)
class Exposure:
    """How much of the time in calls the same rank also computed: `hidden_ns` and `exposed_ns` are
    sums over all `operations` of all ranks for which that is known. `exposed_once_ns`: in how much
    of their time any call ran and the rank computed nothing; `moving_once_ns`: the same, without
    the known waiting for the last rank."""

    operations: int
    hidden_ns: int
    exposed_ns: int
    exposed_once_ns: int
    moving_once_ns: int


def signatures(job: TrainingJob) -> list[Signature]:
    """Those that took longest first, then those that move most."""
    alike: dict[tuple[object, ...], list[Collective]] = defaultdict(list)
    others = (
        Collective(call.group, (call,), complete=False)
        for calls in job.others.values()
        for call in calls
    )
    for collective in (*job.collectives, *others):
        alike[_signature_key(collective)].append(collective)
    result = [_signature(collectives) for collectives in alike.values()]
    return sorted(result, key=lambda row: (-row.total_ns, -(row.busiest_bytes or 0) * row.calls))


def exposure(job: TrainingJob) -> Exposure | None:
    """None where it is known of no call."""
    operations = 0
    hidden_ns = 0
    exposed_ns = 0
    exposed_once_ns = 0
    moving_once_ns = 0
    waits_ns = {
        id(call): collective.waiting_ns.get(call.rank, 0)
        for collective in job.collectives
        for call in collective.calls
    }
    for rank, computing in job.computing.items():
        spans = []
        moving = []
        for call in job.all_calls(rank):
            if call.start_ns is not None and call.end_ns is not None:
                beside_ns = call.beside_ns or 0
                hidden_ns += beside_ns
                exposed_ns += call.end_ns - call.start_ns - beside_ns
                spans.append((call.start_ns, call.end_ns))
                moving.append((call.start_ns + waits_ns.get(id(call), 0), call.end_ns))
        operations += len(spans)
        exposed_once_ns += _exposed_ns(spans, computing)
        moving_once_ns += _exposed_ns(moving, computing)
    if not operations:
        return None
    return Exposure(operations, hidden_ns, exposed_ns, exposed_once_ns, moving_once_ns)


def _exposed_ns(spans: Iterable[Span], computing: BusyTimes) -> int:
    """How long any of these runs while the rank computes nothing."""
    return sum(end - start - computing.within(start, end) for start, end in union_of(spans))


def _signature_key(collective: Collective) -> tuple[object, ...]:
    call = collective.calls[0]
    size = collective.group.size
    sizes = (call.input_bytes, call.output_bytes)
    if call.operation == "all_to_all_v":
        sizes = (None, None)  # its bytes differ from call to call
    operation = "send" if call.is_point_to_point else call.operation
    return (operation, call.dtype, size, sizes)


def _signature(collectives: Sequence[Collective]) -> Signature:
    calls = [call for collective in collectives for call in collective.calls]
    counts: dict[int, int] = defaultdict(int)
    for call in calls:
        counts[call.rank] += 1
    sent = [call.input_bytes for call in calls if call.input_bytes is not None]
    job_ns = [collective.job_ns for collective in collectives if collective.job_ns is not None]
    waits = [collective.waiting_ns for collective in collectives]
    group = collectives[0].group
    is_part = any(call.lacks_time for call in calls)
    return Signature(
        "send_recv" if calls[0].is_point_to_point else calls[0].operation,
        calls[0].dtype,
        tuple(dict.fromkeys(collective.group.ranks for collective in collectives)),
        group.size,
        max(counts.values()),
        fmean(sent) if sent else None,
        max((busiest for busiest in map(_busiest, calls) if busiest is not None), default=None),
        (min(job_ns), max(job_ns)) if job_ns else None,
        any(collective.is_bound for collective in collectives if collective.job_ns is not None),
        sum(call.duration_ns or 0 for call in calls),
        sum(sum(waiting.values()) for waiting in waits) if any(waits) and not is_part else None,
        None if is_part else _exposed(calls),
    )


def _exposed(calls: Sequence[RecordedCall]) -> float | None:
    known = [
        (call.duration_ns, call.beside_ns)
        for call in calls
        if call.duration_ns is not None and call.beside_ns is not None
    ]
    total_ns = sum(duration_ns for duration_ns, _ in known)
    return 1 - sum(beside_ns for _, beside_ns in known) / total_ns if total_ns else None


def _busiest(call: RecordedCall) -> int | None:
    sizes = [size for size in (call.input_bytes, call.output_bytes) if size is not None]
    return max(sizes, default=None)
