"""Jobs that run here on gloo, with 2 ranks: what was called is what is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import traced_job
from traced_job import HIDDEN, STEPS

from commbench_replay.operations import RecordedCall
from commbench_replay.readers.registry import read_traces
from commbench_replay.recorded_workload import workload_of
from commbench_replay.training_job import TrainingJob, training_job
from commbench_replay.workload_file import parse_workload, workload_text

pytestmark = pytest.mark.long
LAYER_BYTES = 4 * HIDDEN * (HIDDEN + 1)


def recorded(kind: str, folder: Path) -> tuple[TrainingJob, TrainingJob]:
    """The job by its profiles, and by its Flight Recorder dumps."""
    done = subprocess.run(
        [sys.executable, traced_job.__file__, kind, str(folder)],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    jobs = []
    for pattern in ("profile-*", "fr_trace_*"):
        files = sorted(map(str, folder.glob(pattern)))
        jobs.append(training_job(read_traces(files)[0]))
    return jobs[0], jobs[1]


def alike(calls: tuple[RecordedCall, ...]) -> list[tuple[object, ...]]:
    """Flight Recorder calls gloo's reduce_scatter by the all_reduce that it is made of."""
    names = {"reduce_scatter": "all_reduce"}
    return [
        (names.get(call.operation, call.operation), call.dtype, call.input_bytes) for call in calls
    ]


def agree(profile: TrainingJob, dump: TrainingJob) -> None:
    """The dump has the calls before the profile too, and ends with it."""
    for rank in profile.ranks:
        calls = alike(profile.calls[rank])
        assert alike(dump.calls[rank])[-len(calls) :] == calls
    assert all(collective.complete for collective in profile.collectives)
    assert all(call.duration_ns for calls in profile.calls.values() for call in calls)
    assert parse_workload(workload_text(workload_of(profile)), "job.json").ranks == 2


def test_a_data_parallel_job_reduces_its_gradients_once_a_step(tmp_path: Path) -> None:
    profile, dump = recorded("ddp", tmp_path)
    agree(profile, dump)
    sizes = [call.input_bytes for call in profile.calls[0] if call.operation == "all_reduce"]
    assert sizes == [2 * LAYER_BYTES] * STEPS


def test_a_sharded_job_gathers_each_layer_twice_a_step_and_scatters_it_once(tmp_path: Path) -> None:
    profile, dump = recorded("fsdp", tmp_path)
    agree(profile, dump)
    names = [call.operation for call in profile.calls[0]]
    assert names.count("all_gather") == 2 * 2 * STEPS
    assert names.count("reduce_scatter") == 2 * STEPS
    assert {call.output_bytes for call in profile.calls[0] if call.operation == "all_gather"} == {
        LAYER_BYTES
    }


def test_batches_and_operations_on_several_tensors_are_read_with_all_their_bytes(
    tmp_path: Path,
) -> None:
    profile, dump = recorded("batched", tmp_path)
    step = [
        ("send", 40, 40), ("send", 24, 24), ("recv", 40, 40), ("recv", 24, 24),
        ("all_gather", 40, 80), ("all_reduce", 48, 48), ("all_reduce", 68, 68),
        ("all_gather", 20, 40), ("reduce_scatter", 72, 36),
    ]  # fmt: skip
    for rank in profile.ranks:
        seen = [
            (call.operation, call.input_bytes, call.output_bytes) for call in profile.calls[rank]
        ]
        assert seen == step * STEPS
        peers = {call.peer for call in profile.calls[rank] if call.is_point_to_point}
        assert peers == {1 - rank}
    assert all(collective.complete for collective in profile.collectives)
    assert profile.notes == {}
    assert parse_workload(workload_text(workload_of(profile)), "job.json").ranks == 2
    gathered = [call for call in dump.calls[0] if call.operation == "all_gather"]
    assert {(call.input_bytes, call.output_bytes) for call in gathered} == {(40, None), (20, None)}
