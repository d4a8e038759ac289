"""When operations of a workload begin, and which ranks would wait for each other forever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from commbench.__main__ import main
from commbench_replay.generators import generate
from commbench_replay.schedule import WaitsForever, schedule
from commbench_replay.workload import RankOrder, Workload, WorkloadCall, WorkloadOperation
from commbench_replay.workload_file import workload_text

GROUPS = ((0, 1, 2), (0, 1), (1, 2))
MESSAGES = ((0, 1), (1, 0))


def reduced(group: int) -> WorkloadOperation:
    return WorkloadOperation(group, "all_reduce", "float32", (64,), (64,))


def sent(peers: tuple[int, int]) -> WorkloadOperation:
    return WorkloadOperation(1, "send_recv", "float32", (2**20,), (2**20,), peers=peers)


def workload_of_orders(
    orders: Sequence[Sequence[tuple[int, float, int] | tuple[int, float, int, float]]],
    operations: Sequence[WorkloadOperation] = tuple(map(reduced, range(3))),
) -> Workload:
    """The order of each rank: operation, gap in seconds, how many before it still run, and
    perhaps the computation beside it."""
    return Workload(
        len(orders),
        GROUPS if len(orders) > 2 else GROUPS[1:2] * 2,
        tuple(operations),
        tuple(
            RankOrder((rank,), tuple(WorkloadCall(*call) for call in order))
            for rank, order in enumerate(orders)
        ),
    )


def test_an_operation_begins_with_its_last_rank_and_all_of_them_end_together() -> None:
    workload = workload_of_orders([
        [(1, 1.0, 0), (0, 0.5, 0)],
        [(1, 3.0, 0), (0, 0.0, 0)],
        [(0, 0.0, 0)],
    ])  # fmt: skip
    first, second = schedule(workload, {0: 0.25, 1: 2.0})
    assert (first.number, first.ranks, first.begin_s, first.end_s) == (1, (0, 1), 3.0, 5.0)
    assert (second.number, second.begin_s, second.end_s) == (0, 5.5, 5.75)


def test_operations_that_overlap_in_the_job_overlap_here() -> None:
    alike = [(1, 0.0, 0), (0, 0.0, 1), (1, 0.0, 1)]
    workload = workload_of_orders([alike, alike, [(0, 0.0, 0)]])
    runs = schedule(workload, {0: 5.0, 1: 1.0})
    assert [(run.number, run.begin_s) for run in runs] == [(1, 0.0), (0, 0.0), (1, 1.0)]


def test_computation_beside_an_operation_runs_while_it_does() -> None:
    order = [(1, 0.0, 0, 2.0), (0, 1.0, 0, 0.5), (1, 0.0, 1, 1.0), (0, 0.0, 0)]
    workload = workload_of_orders([order, order, [(0, 0.0, 0), (0, 0.0, 0)]])
    # operation 1 ends after 5, the next begins after a gap of 1; then 0.5 are computed beside it
    runs = schedule(workload, {0: 3.0, 1: 5.0})
    assert [(run.number, run.begin_s) for run in runs] == [(1, 0.0), (0, 6.0), (1, 6.5), (0, 11.5)]
    longer = [(1, 0.0, 0, 7.0), (0, 1.0, 0)]
    workload = workload_of_orders([longer, longer, [(0, 0.0, 0)]])
    assert [run.begin_s for run in schedule(workload, {1: 5.0})] == [0.0, 8.0]


def test_ranks_that_order_two_groups_differently_wait_forever_and_are_named() -> None:
    workload = workload_of_orders([
        [(0, 0.0, 0), (1, 0.0, 0)],
        [(1, 0.0, 0), (0, 0.0, 0), (2, 0.0, 0)],
        [(0, 0.0, 0), (2, 0.0, 0)],
    ])  # fmt: skip
    with pytest.raises(WaitsForever) as caught:
        schedule(workload, {})
    assert str(caught.value) == (
        "these ranks would wait for each other forever: rank 0 in operation 0 (all_reduce), rank 1"
        " in operation 1 (all_reduce)"
    )


def test_they_do_not_where_one_of_the_operations_is_started_only() -> None:
    workload = workload_of_orders([
        [(0, 0.0, 0), (1, 0.0, 1)],
        [(1, 0.0, 0), (0, 0.0, 0), (2, 0.0, 0)],
        [(0, 0.0, 0), (2, 0.0, 0)],
    ])  # fmt: skip
    assert [run.number for run in schedule(workload, {})] == [0, 1, 2]


def test_a_rank_that_receives_before_it_sends_waits_forever_if_its_peer_does_too() -> None:
    messages = list(map(sent, MESSAGES))
    receiving = [[(1, 0.0, 0), (0, 0.0, 0)], [(0, 0.0, 0), (1, 0.0, 0)]]
    with pytest.raises(WaitsForever, match=r"rank 0 in operation 1 \(send_recv\), rank 1 in op"):
        schedule(workload_of_orders(receiving, messages), {})
    sending = [order[::-1] for order in receiving]
    assert len(schedule(workload_of_orders(sending, messages), {})) == 2


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pipeline", {"ranks": "4", "hidden": "8", "microbatches": "3"}),
        ("tp_dp", {"ranks": "8", "params": "1e3", "layers": "2", "hidden": "4"}),
        ("fsdp", {"ranks": "3", "params": "1e3", "layers": "2"}),
    ],
)
def test_generated_jobs_end(name: str, values: dict[str, str]) -> None:
    workload = generate(name, values)
    runs = schedule(workload, {})
    calls = sum(len(order.calls) * len(order.ranks) for order in workload.orders)
    assert sum(len(run.ranks) for run in runs) == calls


def test_a_file_of_such_ranks_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    crossed = workload_of_orders([
        [(0, 0.0, 0), (1, 0.0, 0)],
        [(1, 0.0, 0), (0, 0.0, 0), (2, 0.0, 0)],
        [(0, 0.0, 0), (2, 0.0, 0)],
    ])  # fmt: skip
    Path("job.json").write_text(workload_text(crossed))
    on = "backend=gloo layout=1x3"
    for words in (["benchmark=replay", "workload=job.json", *on.split()], ["replay", "job.json"]):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert "rank 0 in operation 0 (all_reduce), rank 1 in operation 1" in err
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


@pytest.mark.long
def test_messages_that_only_a_library_with_buffers_ends_are_ended_by_the_supervision(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """Both ranks send first: MPI ends that for small messages, gloo for none."""
    sending = [[(0, 0.0, 0), (1, 0.0, 0)], [(1, 0.0, 0), (0, 0.0, 0)]]
    path = tmp_path / "job.json"
    path.write_text(workload_text(workload_of_orders(sending, list(map(sent, MESSAGES)))))
    run = world(
        "commbench", "backend=gloo", "layout=1x2", "benchmark=replay", f"workload={path}",
        "timing=quick", "budget.late_s=2", "budget.restarts=0", status=3,
    )  # fmt: skip
    (row,) = run.cases[run.cases.status == "failed"].itertuples()
    assert "no end after" in row.reason, run.explain()
    assert "rank 0 on " in row.reason and "rank 1 on " in row.reason
