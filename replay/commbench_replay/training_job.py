"""One job from the traces of its ranks: which calls of different ranks are one operation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import median

from commbench.core.errors import Unreadable
from commbench.core.terminal import one_line
from commbench.core.units import format_ranges

from .busy_times import BusyTimes
from .operations import POINT_TO_POINT, REDUCING, ROOTED, RankGroup, RankTrace, RecordedCall

ASSUMED_WORLD = "groups are not recorded; all ranks agree on the order, so all are in one group"
ASSUMED_BY_NAME = "ranks of groups are not recorded; those with calls in a group are its ranks"
UNMATCHED = "groups are not recorded, so the calls of different ranks can't be matched"
UNEVEN_WINDOWS = "operations that only some ranks have: the traces begin or end at others"
SCATTERED = "type and bytes of a scatter, which the trace of its root has"
# they have as many bytes on each rank of the group
EQUAL_BYTES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


Calls = Mapping[int, tuple[RecordedCall, ...]]  # by rank


@dataclass(frozen=True)
class Collective:
    """The calls of different ranks that are one operation, or of the ranks that have traces; a send
    with its receive.

    `complete`: all ranks of the group are there.
    """

    group: RankGroup
    calls: tuple[RecordedCall, ...]
    complete: bool

    @property
    def operation(self) -> str:
        return self.calls[0].operation

    @cached_property
    def durations_ns(self) -> dict[int, int]:
        """By rank, of those with times."""
        pairs = ((call.rank, call.duration_ns) for call in self.calls)
        return {rank: duration_ns for rank, duration_ns in pairs if duration_ns is not None}

    @property
    def job_ns(self) -> int | None:
        """The shortest duration of a rank, the last one to arrive: waiting is not in it. An upper
        bound where not all ranks are there."""
        return min(self.durations_ns.values(), default=None)

    @property
    def is_bound(self) -> bool:
        return not self.complete or len(self.durations_ns) < len(self.calls)

    @cached_property
    def waiting_ns(self) -> dict[int, int]:
        """How long each rank waited for the last one. Where all ranks wait for all, their ends are
        alike, so no clocks of different hosts are compared; empty for other operations."""
        shortest_ns = self.job_ns
        symmetric = self.operation not in (*ROOTED, *POINT_TO_POINT)
        if shortest_ns is None or len(self.durations_ns) < 2 or not symmetric:
            return {}
        return {rank: total - shortest_ns for rank, total in self.durations_ns.items()}


@dataclass(frozen=True)
class TrainingJob:
    """`ranks` have traces, of `world_size` (None: not known). `others` and `foreign` are of other
    libraries, as in RankTrace. `notes`: what is not known, with the number of operations that it
    concerns. `is_least`: sums of times are of a part of the operations, or of the steps.
    `computing`: when each rank computes, and `windows_ns`: from the start of its first step to the
    end of its last, of those for which it is known."""

    ranks: tuple[int, ...]
    world_size: int | None
    forms: tuple[str, ...]
    collectives: tuple[Collective, ...]
    calls: Calls
    steps: int
    step_s: float | None
    others: Calls
    foreign: Mapping[str, int]
    notes: Mapping[str, int]
    is_least: bool = False
    computing: Mapping[int, BusyTimes] = field(default_factory=dict)
    windows_ns: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def operations(self) -> int:
        """Also those of other libraries."""
        return sum(len(self.all_calls(rank)) for rank in self.ranks)

    def all_calls(self, rank: int) -> tuple[RecordedCall, ...]:
        return (*self.calls[rank], *self.others[rank])

    @property
    def per(self) -> str:
        """What times are given for, behind them."""
        return "a step" if self.steps else "in the recording"

    @property
    def unknown(self) -> list[str]:
        """What no call of the job says, as words for the first line."""
        calls = list(_all_of(self.calls))
        words = []
        if any(call.operation in REDUCING for call in calls):
            words.append("reduction")  # of no format
        if any(call.operation in ROOTED and call.root is None for call in calls):
            words.append("roots")
        if any(call.operation in POINT_TO_POINT and call.peer is None for call in calls):
            words.append("peers")
        if any(call.duration_ns is None for call in calls):
            words.append("some times" if any(call.duration_ns for call in calls) else "times")
        return words


def training_job(traces: Sequence[RankTrace]) -> TrainingJob:
    """Raises Unreadable for traces of different jobs, and for ranks that disagree."""
    world_size = _world_size(traces)
    calls: Calls = {trace.rank: trace.operations for trace in traces}
    notes: Counter[str] = Counter()
    foreign: Counter[str] = Counter()
    for trace in traces:
        notes.update(trace.notes)
        foreign.update(trace.foreign)
    calls = _with_assumed_groups(calls, world_size, notes)
    _check_groups(calls)
    calls = _one_all_to_all(calls)
    calls = _scatters_by_root(calls, notes)
    steps_ns = [duration for trace in traces for duration in trace.step_ns]
    return TrainingJob(
        tuple(sorted(calls)),
        world_size,
        tuple(dict.fromkeys(trace.form for trace in traces)),
        tuple(_collectives(calls, notes)),
        calls,
        max((len(trace.step_ns) for trace in traces), default=0),
        median(steps_ns) / 1e9 if steps_ns else None,
        {trace.rank: trace.others for trace in traces},
        foreign,
        notes,
        _is_least(traces),
        {trace.rank: trace.computing for trace in traces if trace.computing is not None},
        {trace.rank: trace.window_ns for trace in traces if trace.window_ns is not None},
    )


def _is_least(traces: Sequence[RankTrace]) -> bool:
    """Whether times are known of a part of the job only."""
    calls = chain.from_iterable(trace.operations for trace in traces)
    differ = len({len(trace.step_ns) for trace in traces}) > 1
    is_part = any(trace.is_part or trace.foreign for trace in traces)
    return differ or is_part or any(call.lacks_time for call in calls)


def _world_size(traces: Sequence[RankTrace]) -> int | None:
    sources: dict[int, str] = {}
    for trace in traces:
        if trace.rank in sources:
            raise Unreadable(
                f"rank {trace.rank} is in {sources[trace.rank]} and in {trace.source}; name the"
                " traces of one job in one format, a file a rank"
            )
        sources[trace.rank] = trace.source
    sizes = {trace.world_size: trace.source for trace in traces if trace.world_size is not None}
    if len(sizes) > 1:
        named = ", ".join(f"{source} has {size} ranks" for size, source in sizes.items())
        raise Unreadable(f"these are traces of different jobs: {named}; name those of one job")
    size = next(iter(sizes), None)
    beyond = [rank for rank in sources if size is not None and rank >= size]
    if beyond:
        raise Unreadable(
            f"{sources[beyond[0]]} is of rank {beyond[0]}, in a job of {size} ranks; name the"
            " traces of one job"
        )
    return size


def _with_assumed_groups(calls: Calls, world_size: int | None, notes: Counter[str]) -> Calls:
    """The calls with the ranks of their groups, where traces have none and nothing contradicts the
    ranks that are assumed."""
    unknown = sum(call.group.ranks is None for call in _all_of(calls))
    if not unknown or len(calls) == 1:
        return calls
    complete = len(calls) == (world_size or max(calls) + 1)
    assumed = _assumed_groups(calls) if complete else {}
    alike: dict[tuple[RankGroup, int], list[RecordedCall]] = defaultdict(list)
    for call in _all_of(calls):
        if call.group.name in assumed and not call.is_point_to_point:
            alike[assumed[call.group.name], call.sequence].append(call)
    sizes_fit = all(
        call.group.size in (None, group.size)
        for (group, _), parts in alike.items()
        for call in parts
    )
    if not assumed or not sizes_fit or not all(map(_are_alike, alike.values())):
        notes[UNMATCHED] += unknown
        return calls
    world = len(set(assumed.values())) == 1
    notes[ASSUMED_WORLD if world else ASSUMED_BY_NAME] += unknown

    def with_ranks(call: RecordedCall) -> RecordedCall:
        return call if call.group.ranks else replace(call, group=assumed[call.group.name])

    return _with_each(calls, with_ranks)


def _all_of(calls: Calls) -> Iterator[RecordedCall]:
    return chain.from_iterable(calls.values())


def _with_each(calls: Calls, change: Callable[[RecordedCall], RecordedCall]) -> Calls:
    return {rank: tuple(map(change, own)) for rank, own in calls.items()}


def _assumed_groups(calls: Calls) -> dict[str, RankGroup]:
    """A group with ranks for each name without: all ranks if each uses one group, whose address or
    name may differ, else those that use the name; empty where a name is of one rank only."""
    users: dict[str, set[int]] = defaultdict(set)
    for rank, rank_calls in calls.items():
        for call in rank_calls:
            if call.group.ranks is None:
                users[call.group.name].add(rank)
    uses = Counter(rank for ranks in users.values() for rank in ranks)
    if set(uses.values()) == {1} and set(uses) == set(calls):
        return dict.fromkeys(users, RankGroup("", tuple(sorted(calls)), len(calls)))
    if any(len(ranks) == 1 for ranks in users.values()):
        return {}
    return {
        name: RankGroup(name, tuple(sorted(ranks)), len(ranks)) for name, ranks in users.items()
    }


def _are_alike(parts: Sequence[RecordedCall]) -> bool:
    """Whether calls of different ranks can be one operation; what is not known fits everything."""
    operations = {part.operation.removesuffix("_v") for part in parts}
    facts: list[set[object]] = [{part.dtype for part in parts}]
    if operations & set(EQUAL_BYTES):
        facts += [{part.input_bytes for part in parts}, {part.output_bytes for part in parts}]
    return len(operations) == 1 and all(len(values - {None}) <= 1 for values in facts)


def _check_groups(calls: Calls) -> None:
    """Raises Unreadable where one name means groups that only share some of their ranks."""
    known: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for rank, rank_calls in calls.items():
        for group in {call.group for call in rank_calls}:
            if group.ranks is None:
                continue
            if rank not in group.ranks:
                raise Unreadable(
                    f"rank {rank} is not in its own group {one_line(group.name)!r}"
                    f" ({format_ranges(group.ranks)}); name the traces of one job"
                )
            known[group.name].add(group.ranks)
    for name, groups in known.items():
        members = Counter(rank for ranks in groups for rank in ranks)
        if groups and max(members.values()) > 1:
            texts = " and ".join(sorted(format_ranges(ranks) for ranks in groups))
            raise Unreadable(
                f"group {one_line(name)!r} has the ranks {texts}: these are traces of different"
                " jobs; name those of one job"
            )


def _one_all_to_all(calls: Calls) -> Calls:
    """An all_to_all is one with splits on all ranks if it is on one: the others may have even
    ones."""
    uneven = {
        (call.group, call.sequence)
        for call in _all_of(calls)
        if call.operation == "all_to_all_v" and call.group.ranks is not None
    }

    def with_splits(call: RecordedCall) -> RecordedCall:
        if call.operation == "all_to_all" and (call.group, call.sequence) in uneven:
            return replace(call, operation="all_to_all_v")
        return call

    return _with_each(calls, with_splits)


def _scatters_by_root(calls: Calls, notes: Counter[str]) -> Calls:
    """Each scatter with the type and bytes that one of its ranks, the root, has recorded."""
    known = {
        (call.group, call.sequence): call
        for call in _all_of(calls)
        if call.operation == "scatter" and call.dtype is not None
    }

    def completed(call: RecordedCall) -> RecordedCall:
        if call.operation != "scatter" or call.dtype is not None:
            return call
        root = known.get((call.group, call.sequence))
        if root is None:
            notes[SCATTERED] += 1
            return call
        return replace(
            call,
            dtype=root.dtype,
            input_bytes=root.input_bytes,
            output_bytes=root.output_bytes,
        )

    return _with_each(calls, completed)


def _collectives(calls: Calls, notes: Counter[str]) -> Iterable[Collective]:
    """The operations of the job; raises Unreadable for ranks that disagree on the order."""
    together: dict[tuple[object, ...], list[RecordedCall]] = defaultdict(list)
    for rank, rank_calls in sorted(calls.items()):
        for call in rank_calls:
            together[_meeting(rank, call)].append(call)
    partial = 0
    for parts in together.values():
        group = parts[0].group
        pair = parts[0].is_point_to_point
        if not pair and not _are_alike(parts):
            raise _disagreement(parts)
        expected = 2 if pair else group.size
        present = [rank for rank in group.ranks or () if rank in calls]
        if not pair and len(parts) < len(present):
            partial += len(parts)
        yield Collective(group, tuple(parts), group.ranks is not None and len(parts) == expected)
    if partial:
        notes[UNEVEN_WINDOWS] += partial


def _meeting(rank: int, call: RecordedCall) -> tuple[object, ...]:
    """What the calls of one operation share."""
    ranks = call.group.ranks
    if ranks is None or (call.is_point_to_point and call.peer is None):
        return (rank, call.group, call.operation, call.peer, call.sequence)
    if not call.is_point_to_point:
        return (call.group, call.sequence)
    sides = (ranks.index(rank), call.peer)
    sender, receiver = sides if call.operation == "send" else sides[::-1]
    return (call.group, sender, receiver, call.sequence)


def _disagreement(parts: Sequence[RecordedCall]) -> Unreadable:
    """Names the smaller side."""
    texts = Counter(map(_short, parts))
    usual = texts.most_common(1)[0][0]
    other = next(part for part in parts if _short(part) != usual)
    most = next(part for part in parts if _short(part) == usual)
    group = other.group
    return Unreadable(
        f"the ranks of group {one_line(group.name)!r} ({format_ranges(group.ranks or ())}) disagree"
        f" on operation {other.sequence}: rank {other.rank} has {_short(other)}, rank {most.rank}"
        f" {_short(most)}; the traces are of different steps or jobs: record the same steps on all"
        " ranks"
    )


def _short(call: RecordedCall) -> str:
    text = f"{call.operation} {call.dtype} of {call.input_bytes} B"
    return text if call.output_bytes == call.input_bytes else f"{text} ({call.output_bytes} B out)"
