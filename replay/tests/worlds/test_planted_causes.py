"""Causes that are planted in a job on real ranks are named, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from commbench.results.load import read_case_rows
from commbench_replay.causes import Cause, causes
from commbench_replay.replay_times import ReplayTimes, replay_times
from commbench_replay.scaling import scaled
from commbench_replay.workload import RankOrder, Workload, WorkloadCall, WorkloadOperation
from commbench_replay.workload_file import workload_text

pytestmark = [pytest.mark.long, pytest.mark.serial]
MIB = 2**20
TWO_CORES = ("taskset", "-c", "0,1")


def reduced(group: int, size_bytes: int) -> WorkloadOperation:
    return WorkloadOperation(group, "all_reduce", "float32", (size_bytes,), (size_bytes,))


def job(
    groups: Sequence[tuple[int, ...]], size_bytes: int, calls: Sequence[Sequence[WorkloadCall]]
) -> Workload:
    """One all_reduce in each group, with the calls of its ranks; no operation of all ranks."""
    operations = tuple(reduced(group, size_bytes) for group in range(len(groups)))
    orders = tuple(
        RankOrder(ranks, tuple(of_group)) for ranks, of_group in zip(groups, calls, strict=True)
    )
    return Workload(sum(map(len, groups)), tuple(groups), operations, orders)


def replayed(
    world: Callable[..., Any], tmp_path: Path, workload: Workload, *words: str
) -> dict[str, Cause]:
    found = causes(measured(world, tmp_path, workload, *words))
    print(*found, sep="\n")
    return {cause.name: cause for cause in found}


def measured(
    world: Callable[..., Any], tmp_path: Path, workload: Workload, *words: str
) -> ReplayTimes:
    path = tmp_path / "job.json"
    path.write_text(workload_text(workload))
    run = world(
        *TWO_CORES, "commbench", "backend=gloo", f"layout=1x{workload.ranks}", "benchmark=replay",
        f"workload={path}", "timing=quick", *words,
    )  # fmt: skip
    print(run.stdout)
    rows = read_case_rows([run.output])
    return replay_times(rows, scaled(workload, workload.ranks))


def named(found: dict[str, Cause]) -> set[str]:
    return {name for name, cause in found.items() if cause.is_named}


def test_a_rank_that_begins_late_is_what_the_others_wait_for(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    workload = job([(0, 1)], 64 * 1024, [[WorkloadCall(0)] * 8])
    found = replayed(world, tmp_path, workload, "late=[null,1:20ms]")
    waiting = found["waiting for rank 1"]
    assert waiting.is_named and waiting.loss is not None
    assert waiting.loss.value == pytest.approx(8 * 20e-3, rel=0.2)


def test_computation_on_all_cores_beside_communication_is_interference(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """Two ranks communicate while two others compute on the same cores."""
    computing = [WorkloadCall(1, gap_s=0.06)]
    workload = job([(0, 1), (2, 3)], 8 * MIB, [[WorkloadCall(0)] * 12, computing])
    assert named(replayed(world, tmp_path, workload, "gaps=[sleep,matmul]")) == {"interference"}


def test_computation_beside_communication_hides_it_and_before_it_does_not(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """gloo goes on beside a sleep."""
    steps = []
    for call in (WorkloadCall(0, beside_s=0.04), WorkloadCall(0, gap_s=0.04)):
        workload = job([(0, 1)], 16 * MIB, [[call] * 8])
        steps.append(measured(world, tmp_path, workload, "gaps=sleep").sequence["sleep"])
    beside, before = steps
    assert beside.value > 8 * 0.04 and beside.high < before.low


def test_a_second_group_at_once_is_contention(world: Callable[..., Any], tmp_path: Path) -> None:
    calls = [[WorkloadCall(group)] * 8 for group in range(2)]
    workload = job([(0, 1), (2, 3)], 4 * MIB, calls)
    assert named(replayed(world, tmp_path, workload)) == {"contention"}


@pytest.mark.parametrize("size_bytes", [64 * 1024, 4 * MIB])
def test_a_job_of_one_group_names_no_cause(
    world: Callable[..., Any], tmp_path: Path, size_bytes: int
) -> None:
    workload = job([(0, 1)], size_bytes, [[WorkloadCall(0, gap_s=0.002)] * 8])
    found = replayed(world, tmp_path, workload, "gaps=[none,sleep,matmul]", "late=null")
    assert named(found) == set()
