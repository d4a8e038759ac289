"""commbench's own replay, recorded and read back: the same operations as the workload file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commbench_replay.analysis_text import operations_csv
from commbench_replay.readers.registry import read_traces
from commbench_replay.training_job import TrainingJob, training_job
from commbench_replay.waiting import waiting_of
from commbench_replay.workload import (
    SEND_RECV,
    RankOrder,
    Workload,
    WorkloadCall,
    WorkloadOperation,
)
from commbench_replay.workload_file import workload_text

QUICK = ("timing=fixed", "timing.repetitions=3", "timing.warmup_repetitions=1", "timing.warmup_s=0")
FLIGHT_RECORDED = (
    "allow=[flight_recorded_gloo]",
    "backend._target_=flight_recorded_gloo.FlightRecordedGloo",
    "env.TORCH_FR_BUFFER_SIZE=2000",
)
COMPARED = (
    *("rank", "group_ranks", "group_size", "operation", "dtype", "input_bytes", "output_bytes"),
    *("send_counts", "receive_counts", "root", "peer"),
)
# gloo makes a reduce_scatter of an all_reduce and records that; sends are not recorded, nor are
# splits, roots, the ranks of groups, and what a rank that is not the root gives to a scatter
IN_FLIGHT_RECORDER = ("rank", "operation", "dtype", "input_bytes")
KIB = 1024


def every_operation(ranks: int) -> Workload:
    """All kinds, in a group of all ranks; some begin while others run."""
    world = tuple(range(ranks))
    counts = tuple(tuple(1 + (rank + 2 * peer) % 5 for peer in world) for rank in world)
    sent = tuple(4 * sum(row) for row in counts)
    received = tuple(4 * sum(column) for column in zip(*counts, strict=True))
    many = ranks * KIB
    sizes = {
        "all_reduce": (many, many),
        "all_gather": (KIB, many),
        "reduce_scatter": (many, KIB),
        "all_to_all": (many, many),
        "broadcast": (KIB, KIB),
        "reduce": (KIB, KIB),
        "gather": (KIB, many),
        "scatter": (many, KIB),
    }
    operations = [
        WorkloadOperation(
            0, name, "float32", (sizes[name][0],), (sizes[name][1],),
            root=1 if name in ("broadcast", "reduce", "gather", "scatter") else None,
        )
        for name in sizes
    ]  # fmt: skip
    operations.append(WorkloadOperation(0, "all_to_all_v", "int32", sent, received, counts))
    operations.append(WorkloadOperation(0, "barrier", None, (0,), (0,)))
    collectives = len(operations)
    ring = [(rank, (rank + 1) % ranks) for rank in world]
    operations += [
        WorkloadOperation(0, SEND_RECV, "int64", (64,), (64,), peers=peers) for peers in ring
    ]
    orders = []
    for rank in world:
        calls = [WorkloadCall(number) for number in range(collectives)]
        calls[1] = replace(calls[1], concurrent=1)
        sends = [WorkloadCall(collectives + rank)]
        receives = [WorkloadCall(collectives + (rank - 1) % ranks)]
        messages = receives + sends if rank == 0 else sends + receives
        orders.append(RankOrder((rank,), (*calls, *messages)))
    return Workload(ranks, (world,), tuple(operations), tuple(orders))


def profiled(
    world: Callable[..., Any], tmp_path: Path, workload: Workload, *words: str, **more: Any
) -> TrainingJob:
    """What is read from the profiles of the sequence."""
    path = tmp_path / "job.json"
    path.write_text(workload_text(workload))
    run = world(
        "commbench", "backend=gloo", f"layout=1x{workload.ranks}", "benchmark=replay",
        f"workload={path}", f"profile={tmp_path / 'profiles'}", *QUICK, *words, **more,
    )  # fmt: skip
    cases = run.cases
    assert set(cases.status) == {"ok"}, run.explain()
    (sequence,) = cases[cases.gaps.notna()].case_id
    return training_job(read_traces([str(tmp_path / "profiles" / f"replay-{sequence}")])[0])


def table(job: TrainingJob, columns: tuple[str, ...]) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(operations_csv(job)))
    return [{name: row[name] for name in columns} for row in rows]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_recorded_replay_has_the_operations_of_its_workload(
    world: Callable[..., Any], tmp_path: Path, ranks: int
) -> None:
    workload = every_operation(ranks)
    seen = profiled(world, tmp_path, workload)
    written = training_job(read_traces([str(tmp_path / "job.json")])[0])
    assert table(seen, COMPARED) == table(written, COMPARED)
    assert (seen.steps, seen.notes) == (1, {})


@pytest.mark.long
def test_flight_recorder_has_them_too_as_far_as_it_records_gloo(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    workload = every_operation(2)
    env = {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    seen = profiled(world, tmp_path, workload, *FLIGHT_RECORDED, env=env)
    written = training_job(read_traces([str(tmp_path / "job.json")])[0])
    expected = [
        {**row, "operation": row["operation"].replace("reduce_scatter", "all_reduce")}
        for row in table(written, IN_FLIGHT_RECORDER)
        if row["operation"] not in ("send", "recv")
    ]
    for row in expected:
        if row["operation"] == "scatter" and row["rank"] != "1":
            row["input_bytes"] = ""
    assert table(seen, IN_FLIGHT_RECORDER) == expected


def test_a_planted_late_rank_is_named_by_the_traces_of_the_replay(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    reduced = WorkloadOperation(0, "all_reduce", "float32", (64 * KIB,), (64 * KIB,))
    order = RankOrder((0, 1), (WorkloadCall(0, 0.001),) * 16)
    workload = Workload(2, ((0, 1),), (reduced,), (order,))
    job = profiled(world, tmp_path, workload, "late=1:4ms")
    waiting = waiting_of(job)
    assert waiting is not None and waiting.late is not None
    assert waiting.late.rank == 1 and waiting.late.waiting_ns > 12 * 3e6
