"""A workload on another number of ranks: which of its ranks, groups and operations are replayed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from commbench.core.variables import Splits

from .operations import ITEM_BYTES, ROOTED
from .workload import SEND_RECV, RankOrder, Workload, WorkloadCall, WorkloadOperation

UNEVEN_SPLITS = "all_to_all_v whose counts are not known"
UNEVEN_BLOCKS = "blocks of different sizes in an operation without counts"
CUT_GROUP = "all_to_all_v in a group that was cut: its counts are of other ranks"
CUT_PEERS = "ranks of the group or of the message are not replayed"


@dataclass(frozen=True)
class ScaledWorkload:
    """The first `ranks` ranks of the workload `whole`. `operations` have their numbers in the file;
    their `group` is an index of `groups`. `reasons`: why the others are not replayed, by number;
    `dropped`: reason -> bytes of their calls, over `all_bytes`. `changed_bytes`: of calls whose
    counts are not the job's."""

    whole: Workload
    ranks: int
    splits: Splits | None
    groups: tuple[tuple[int, ...], ...]
    operations: Mapping[int, WorkloadOperation]
    orders: tuple[RankOrder, ...]
    reasons: Mapping[int, str]
    dropped: Mapping[str, int]
    all_bytes: int
    changed_bytes: int = 0

    @cached_property
    def calls(self) -> dict[int, tuple[WorkloadCall, ...]]:
        """By rank."""
        return {rank: order.calls for order in self.orders for rank in order.ranks}

    @cached_property
    def call_counts(self) -> dict[int, Counter[int]]:
        """By rank, how often it calls each operation."""
        return {
            rank: Counter(call.operation for call in calls) for rank, calls in self.calls.items()
        }

    @cached_property
    def step_calls(self) -> list[dict[int, float]]:
        """How often each operation runs in a step, in each of the orders."""
        counted = [Counter(call.operation for call in order.calls) for order in self.orders]
        steps = self.whole.steps
        return [{number: count / steps for number, count in each.items()} for each in counted]

    @property
    def dropped_share(self) -> float:
        """Of the bytes that the replayed ranks send in the job."""
        return sum(self.dropped.values()) / self.all_bytes if self.all_bytes else 0.0

    @property
    def changed_share(self) -> float:
        """Likewise."""
        return self.changed_bytes / self.all_bytes if self.all_bytes else 0.0

    def sentences(self) -> Iterator[str]:
        """Which ranks of the job are replayed, what of them is not, and what is not as it was."""
        if self.ranks < self.whole.ranks or self.dropped:
            reasons = "; ".join(self.dropped)
            dropped = f", {self.dropped_share:.0%} of their bytes dropped: {reasons}"
            ranks = f"{self.ranks} of the job's {self.whole.ranks} ranks"
            yield f"{ranks}{dropped if self.dropped else ''}"
        if self.changed_bytes:
            yield (
                f"splits={self.splits}: the counts of all_to_all_v, of {self.changed_share:.0%} of"
                " their bytes, are not the job's"
            )


def scaled(workload: Workload, ranks: int, splits: Splits | None = None) -> ScaledWorkload:
    """The workload on its first `ranks` ranks. A group whose ranks are all there stays as it is. A
    group with more ranks than there are is cut to those that are, with as many bytes per rank.
    The operations of other groups are dropped, and without `splits` each all_to_all_v whose counts
    are not those of its ranks."""
    members = [tuple(rank for rank in group if rank < ranks) for group in workload.groups]
    operations: dict[int, WorkloadOperation] = {}
    reasons: dict[int, str] = {}
    for number, operation in enumerate(workload.operations):
        own = members[operation.group]
        whole = workload.groups[operation.group]
        outcome = _fitted(operation, whole, own, ranks, splits)
        if isinstance(outcome, str):
            reasons[number] = outcome
        else:
            operations[number] = outcome
    orders = []
    dropped: Counter[str] = Counter()
    all_bytes = 0
    changed_bytes = 0
    for order in workload.orders:
        own_ranks = tuple(rank for rank in order.ranks if rank < ranks)
        if not own_ranks:
            continue
        for call in order.calls:
            call_bytes = len(own_ranks) * _sent_bytes(workload.operations[call.operation])
            all_bytes += call_bytes
            if call.operation in reasons:
                dropped[reasons[call.operation]] += call_bytes
            elif operations[call.operation].counts != workload.operations[call.operation].counts:
                changed_bytes += call_bytes
        orders.append(RankOrder(own_ranks, _kept_calls(order.calls, operations)))
    return ScaledWorkload(
        whole=workload,
        ranks=ranks,
        splits=splits,
        groups=tuple(members),
        operations=operations,
        orders=tuple(orders),
        reasons=reasons,
        dropped=dict(dropped),
        all_bytes=all_bytes,
        changed_bytes=changed_bytes,
    )


def _kept_calls(
    calls: Sequence[WorkloadCall], operations: Mapping[int, WorkloadOperation]
) -> tuple[WorkloadCall, ...]:
    """The calls that are replayed; the gap before one that is not, and the computation beside it,
    are added to the gap of the next."""
    kept = []
    gap_s = 0.0
    for call in calls:
        gap_s += call.gap_s or 0.0
        if call.operation in operations:
            kept.append(replace(call, gap_s=gap_s))
            gap_s = 0.0
        else:
            gap_s += call.beside_s or 0.0
    return tuple(kept)


def _fitted(
    operation: WorkloadOperation,
    whole: tuple[int, ...],
    own: tuple[int, ...],
    ranks: int,
    splits: Splits | None,
) -> WorkloadOperation | str:
    """The operation among the ranks that are there, or the reason why it is dropped."""
    if operation.operation == "all_to_all_v":
        if operation.counts is not None and own == whole:
            return operation
        if splits is None:
            return UNEVEN_SPLITS if operation.counts is None else CUT_GROUP
        is_cut = own != whole
        if is_cut and (len(whole) <= ranks or len(own) < 2):
            return CUT_PEERS
        return _with_counts(operation, [whole.index(rank) for rank in own], splits)
    if len(operation.input_bytes) > 1 or len(operation.output_bytes) > 1:
        return UNEVEN_BLOCKS
    if own == whole:
        return operation
    if operation.operation == SEND_RECV or len(whole) <= ranks or len(own) < 2:
        return CUT_PEERS
    return _cut(operation, len(own))


def _with_counts(
    operation: WorkloadOperation, places: Sequence[int], splits: Splits
) -> WorkloadOperation:
    """The all_to_all_v among these places of its group: each sends as much as in the job, to all
    alike, or as it did to as many of the job's ranks, which are drawn and the same for all
    senders, so that a rank that gets more from all of them does so here."""
    item_bytes = ITEM_BYTES[operation.dtype or "uint8"]
    sizes = operation.input_bytes
    recorded = operation.counts
    shares = [(1,) * len(places)] * len(places)
    if recorded is not None and splits == "resampled":
        drawn = _drawn(recorded, len(places))
        shares = [tuple(recorded[place][column] for column in drawn) for place in places]
    counts = tuple(
        _in_shares(sizes[place % len(sizes)] // item_bytes, own)
        for place, own in zip(places, shares, strict=True)
    )
    sent = tuple(item_bytes * sum(row) for row in counts)
    received = tuple(item_bytes * sum(column) for column in zip(*counts, strict=True))
    return replace(operation, input_bytes=sent, output_bytes=received, counts=counts, job_s=None)


def _drawn(counts: Sequence[Sequence[int]], number: int) -> list[int]:
    """So many different columns, by a hash of the counts: the same on all ranks and backends."""
    key = hashlib.blake2b(repr(counts).encode(), digest_size=16).digest()

    def place_of(column: int) -> bytes:
        return hashlib.blake2b(str(column).encode(), key=key).digest()

    return sorted(range(len(counts)), key=place_of)[:number]


def _in_shares(total: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers with that sum, in proportion to the shares; alike if these are all zero."""
    weights = list(shares) if sum(shares) else [1] * len(shares)
    ends = [total * sum(weights[: place + 1]) // sum(weights) for place in range(len(weights))]
    return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))


def _cut(operation: WorkloadOperation, own_size: int) -> WorkloadOperation:
    """Among the first ranks of its group, with the bytes of its larger buffer, which are those that
    a rank sends or receives."""
    root = operation.root
    if operation.operation in ROOTED and root is not None and root >= own_size:
        root = 0
    shared = replace(operation, root=root, job_s=None)
    (input_bytes,) = operation.input_bytes
    (output_bytes,) = operation.output_bytes
    if operation.operation in ("all_gather", "gather"):
        return replace(shared, input_bytes=(output_bytes // own_size,))
    if operation.operation in ("reduce_scatter", "scatter"):
        return replace(shared, output_bytes=(input_bytes // own_size,))
    return shared


def _sent_bytes(operation: WorkloadOperation) -> int:
    """The mean bytes of the larger buffer of a rank."""
    return max(
        sum(sizes) // max(len(sizes), 1)
        for sizes in (operation.input_bytes, operation.output_bytes)
    )
