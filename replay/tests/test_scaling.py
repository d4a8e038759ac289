"""Which part of a workload fewer ranks replay."""

from __future__ import annotations

from itertools import permutations

import pytest

from commbench_replay.generators import generate
from commbench_replay.scaling import (
    CUT_GROUP,
    CUT_PEERS,
    UNEVEN_BLOCKS,
    UNEVEN_SPLITS,
    scaled,
)
from commbench_replay.workload import (
    RankOrder,
    Workload,
    WorkloadCall,
    WorkloadOperation,
    first_alike,
)

WORLD = (0, 1, 2, 3)


def workload_with(
    *operations: WorkloadOperation, groups: tuple[tuple[int, ...], ...] = (WORLD,)
) -> Workload:
    """Each rank calls every operation of its groups once."""
    orders = tuple(
        RankOrder(
            (rank,),
            tuple(
                WorkloadCall(number, 1e-3)
                for number, operation in enumerate(operations)
                if rank in groups[operation.group]
            ),
        )
        for rank in WORLD
    )
    return Workload(4, groups, operations, orders)


def one(name: str, sent: int, received: int, group: int = 0) -> WorkloadOperation:
    return WorkloadOperation(group, name, "float32", (sent,), (received,), job_s=1e-3)


def test_as_many_ranks_as_the_job_had_replay_all_of_it() -> None:
    whole = generate("fsdp", {"ranks": "4", "params": "1e6", "layers": "2"})
    part = scaled(whole, 4)
    assert tuple(part.operations.values()) == whole.operations
    assert part.dropped_share == 0.0 and not part.dropped
    assert [len(part.calls[rank]) for rank in WORLD] == [6] * 4


def test_a_group_that_fits_stays_whole_and_one_that_straddles_is_dropped() -> None:
    groups = ((0, 1), (2, 3), (0, 2), (1, 3))
    operations = [one("all_reduce", 64, 64, group) for group in range(4)]
    part = scaled(workload_with(*operations, groups=groups), 2)
    assert list(part.operations) == [0]
    assert part.dropped == {CUT_PEERS: 2 * 64} and part.dropped_share == 0.5
    assert [call.operation for call in part.calls[0]] == [0]


@pytest.mark.parametrize(
    ("name", "sent", "received", "cut"),
    [
        ("all_reduce", 64, 64, (64, 64)),
        ("all_gather", 16, 64, (32, 64)),
        ("reduce_scatter", 64, 16, (64, 32)),
        ("all_to_all", 64, 64, (64, 64)),
        ("gather", 16, 64, (32, 64)),
        ("scatter", 64, 16, (64, 32)),
    ],
)
def test_a_larger_group_is_cut_with_the_bytes_of_a_rank(
    name: str, sent: int, received: int, cut: tuple[int, int]
) -> None:
    (operation,) = scaled(workload_with(one(name, sent, received)), 2).operations.values()
    assert (operation.input_bytes[0], operation.output_bytes[0]) == cut
    assert operation.job_s is None  # it is not the operation that the job timed


def test_what_cannot_be_replayed_is_named_with_its_bytes() -> None:
    uneven = WorkloadOperation(0, "all_to_all_v", "float32", (16, 8, 8, 8), (10,), None)
    counted = WorkloadOperation(0, "all_to_all_v", "float32", (16,), (16,), ((1,) * 4,) * 4)
    blocks = WorkloadOperation(0, "all_gather", "float32", (16, 8, 8, 8), (40,))
    message = WorkloadOperation(0, "send_recv", "float32", (32,), (32,), peers=(1, 3))
    part = scaled(workload_with(uneven, counted, blocks, message), 2)
    assert not part.operations and part.dropped_share == 1.0
    assert set(part.dropped) == {UNEVEN_SPLITS, CUT_GROUP, UNEVEN_BLOCKS, CUT_PEERS}
    assert list(scaled(workload_with(counted), 4).operations) == [0]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_splits_that_are_not_known_are_even_on_request(ranks: int) -> None:
    unknown = WorkloadOperation(0, "all_to_all_v", "float32", (40, 44, 8, 0), (23,), None)
    part = scaled(workload_with(unknown), ranks, "even")
    (operation,) = part.operations.values()
    assert operation.counts is not None and part.changed_share == 1.0 and not part.dropped
    assert [sum(row) for row in operation.counts] == [10, 11, 2, 0][:ranks]
    assert max(max(row) - min(row) for row in operation.counts) <= 1
    assert operation.input_bytes == (40, 44, 8, 0)[:ranks]
    received = [4 * sum(column) for column in zip(*operation.counts, strict=True)]
    assert list(operation.output_bytes) == received


def test_a_cut_group_has_the_shares_of_as_many_ranks_of_the_job() -> None:
    """All send most to the last one, and nothing to the first."""
    rows = tuple((0, 10 + rank, 20, 70 - rank) for rank in WORLD)
    received = tuple(4 * sum(column) for column in zip(*rows, strict=True))
    operation = WorkloadOperation(0, "all_to_all_v", "float32", (400,), received, rows)
    for ranks in (2, 3):
        part = scaled(workload_with(operation), ranks, "resampled")
        (drawn,) = part.operations.values()
        assert drawn.counts is not None and drawn.input_bytes == (400,) * ranks
        order = [sorted(range(ranks), key=row.__getitem__) for row in drawn.counts]
        assert order == order[:1] * ranks, "a rank that all send more to stays one"
        shares = [count / 100 for count in drawn.counts[0]]
        recorded = [
            [rows[0][column] / sum(rows[0][each] for each in chosen) for column in chosen]
            for chosen in permutations(range(4), ranks)
            if sum(rows[0][each] for each in chosen)
        ]
        assert any(shares == pytest.approx(each, abs=0.011) for each in recorded)
        assert scaled(workload_with(operation), ranks, "resampled") == part
    whole = scaled(workload_with(operation), 4, "resampled")
    assert whole.operations[0] == operation and not whole.changed_bytes
    assert scaled(workload_with(operation), 2).dropped


def test_a_group_that_is_not_there_stays_dropped_with_any_splits() -> None:
    counted = WorkloadOperation(0, "all_to_all_v", "float32", (16,), (16,), ((1,) * 2,) * 2)
    part = scaled(workload_with(counted, groups=((1, 3),)), 2, "resampled")
    assert list(part.dropped) == [CUT_PEERS]


def test_the_gap_before_a_dropped_call_is_kept() -> None:
    dropped = WorkloadOperation(0, "all_to_all_v", "float32", (16, 8, 8, 8), (10,), None)
    part = scaled(workload_with(dropped, one("all_reduce", 64, 64)), 4)
    assert [call.gap_s for call in part.calls[0]] == [pytest.approx(2e-3)]


def test_computation_beside_a_dropped_call_is_part_of_the_next_gap() -> None:
    dropped = WorkloadOperation(0, "all_to_all_v", "float32", (16, 8, 8, 8), (10,), None)
    calls = (WorkloadCall(0, 1e-3, 0, 4e-3), WorkloadCall(1, 2e-3, 0, 8e-3))
    operations = (dropped, one("all_reduce", 64, 64))
    part = scaled(Workload(4, (WORLD,), operations, (RankOrder(WORLD, calls),)), 2)
    assert part.calls[0] == (WorkloadCall(1, pytest.approx(7e-3), 0, 8e-3),)


def test_operations_are_alike_where_bytes_type_and_distances_of_ranks_are() -> None:
    groups = ((0, 1), (2, 3), (0, 2))
    operations = [one("all_reduce", 64, 64, group) for group in range(3)]
    more = [one("all_reduce", 32, 32, 0), one("broadcast", 64, 64, 0)]
    alike = first_alike(workload_with(*operations, *more, groups=groups))
    assert alike == {0: 0, 1: 0, 2: 2, 3: 3, 4: 4}
