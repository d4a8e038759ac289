"""The training jobs of tools/jobs: what they say of themselves is what their traces have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import TOOLS

from commbench_replay.readers.registry import read_traces
from commbench_replay.recorded_workload import workload_of
from commbench_replay.training_job import TrainingJob, training_job
from commbench_replay.waiting import waiting_of
from commbench_replay.workload import Workload

pytestmark = pytest.mark.long
JOBS = TOOLS / "jobs"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
LAYERS = 4
MANY = 64
TRACED_STEPS = 5
LATE_MS = 40
WORK_BEGINS_S = 1e-3  # of a step, after its calls have begun


def printed_by(*words: str) -> str:
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def job_in(folder: Path) -> TrainingJob:
    return training_job(read_traces([str(folder)])[0])


def traced(folder: Path) -> Workload:
    return workload_of(job_in(folder))


@pytest.mark.parametrize("name", ["ddp", "fsdp", "tensor_parallel", "moe"])
def test_a_job_counts_the_communication_that_its_traces_have(name: str, tmp_path: Path) -> None:
    out = printed_by(*TORCHRUN, str(JOBS / f"{name}.py"), "--traces", str(tmp_path))
    own: dict[str, Any] = json.loads(next(line for line in out.splitlines() if line[:1] == "{"))
    workload = traced(tmp_path)
    assert (own["job"], own["ranks"], workload.ranks) == (name, 2, 2)
    assert workload.steps == TRACED_STEPS
    calls = {len(order.calls) for order in workload.orders}
    assert calls == {own["calls"] * TRACED_STEPS}
    assert all(operation.job_s for operation in workload.operations)
    assert own["communication_s"] > 0
    uneven = [each for each in workload.operations if each.operation == "all_to_all_v"]
    assert bool(uneven) == (name == "moe") and all(each.counts for each in uneven)
    waiting = waiting_of(job_in(tmp_path))
    assert waiting is not None and not waiting.is_least
    # calls of ddp overlap, and begin in its traces when gloo has a thread for them
    if name != "ddp":
        assert own["communication_s"] < own["step_s"]
        assert waiting.seconds.low - WORK_BEGINS_S < own["waiting_s"]
        assert own["waiting_s"] < waiting.seconds.high + WORK_BEGINS_S


def test_a_rank_that_begins_its_steps_later_is_named_with_what_it_costs(tmp_path: Path) -> None:
    words = ("--late", f"1:{LATE_MS}", "--traces", str(tmp_path))
    printed_by(*TORCHRUN, str(JOBS / "ddp.py"), *words)
    waiting = waiting_of(job_in(tmp_path))
    assert waiting is not None and waiting.late is not None and waiting.late.rank == 1
    cost_s = waiting.late.waiting_ns / TRACED_STEPS / 1e9
    assert cost_s == pytest.approx(LATE_MS / 1e3, rel=0.5)


def test_a_world_of_64_ranks_that_is_not_there_is_read_and_replayed(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    job = tmp_path / "job.json"
    fsdp = str(JOBS / "fsdp.py")
    printed_by(sys.executable, fsdp, "--fake-ranks", str(MANY), "--traces", str(traces))
    workload = traced(traces)
    assert workload.ranks == MANY and workload.groups == (tuple(range(MANY)),)
    (order,) = workload.orders
    names = [workload.operations[call.operation].operation for call in order.calls]
    assert names.count("all_gather") == 2 * LAYERS and names.count("reduce_scatter") == LAYERS
    printed_by(sys.executable, "-m", "commbench", "replay", str(traces), "--export", str(job))
    replayed = world(
        "commbench", "benchmark=replay", f"workload={job}", "backend=simulated", "layout=8x8",
        "timing=fixed", "timing.repetitions=2", "timing.warmup_repetitions=1",
        "timing.warmup_s=0",
    )  # fmt: skip
    assert list(replayed.cases.status) == ["ok"] * 3
    assert list(replayed.cases.layout) == ["8x8"] * 3
