"""How much of a job's communication computation hides: planted truths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from loops import for_each
from trace_writers import Call, write_gloo_kineto, write_kineto

from commbench_replay.analysis import Exposure, exposure, signatures
from commbench_replay.busy_times import BusyTimes
from commbench_replay.operations import RankGroup, RankTrace, RecordedCall
from commbench_replay.readers.registry import read_traces
from commbench_replay.training_job import training_job

TWICE = [Call("0", (0, 1), "all_reduce", "float32", 64)] * 2
# the work of call n is at 1010 + 1000 n us on rank 0, 40 us later on rank 1, and ends at 1510
BESIDE = [(1020, 1038), (1050, 1110), (1100, 1120), (1300, 1400), (1480, 1600), (2600, 2700)]


@for_each("write", [write_kineto, write_gloo_kineto])
def test_the_planted_computation_is_found(
    write: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    write(TWICE, folder, BESIDE)
    job = training_job(read_traces([str(folder)])[0])
    assert [call.beside_ns for call in job.calls[0]] == [18_000 + 70_000 + 100_000 + 30_000, 0]
    assert [call.beside_ns for call in job.calls[1]] == [70_000 + 100_000 + 30_000, 0]
    total_ns = 2 * (500_000 + 460_000)
    hidden_ns = 218_000 + 200_000
    exposed_ns = total_ns - hidden_ns
    # rank 0 waits 40 us in each call, and computes in 18 us of the first wait
    moving_ns = exposed_ns - (2 * 40_000 - 18_000)
    assert exposure(job) == Exposure(4, hidden_ns, exposed_ns, exposed_ns, moving_ns)
    (row,) = signatures(job)
    assert row.exposed == pytest.approx(1 - hidden_ns / total_ns)


def test_calls_at_the_same_time_hide_the_same_computation_and_count_once_together() -> None:
    group = RankGroup("0", (0,), 1)
    calls = tuple(
        RecordedCall(
            0, group, sequence, "all_reduce", start_ns=start, end_ns=start + 100, beside_ns=beside
        )
        for sequence, (start, beside) in enumerate([(0, 40), (50, 20)])
    )
    computing = BusyTimes([(20, 60), (140, 160)])
    job = training_job([RankTrace("r", "t", 0, calls, 1, computing=computing)])
    assert exposure(job) == Exposure(2, 60, 140, 150 - 50, 150 - 50)


def test_what_is_known_of_no_rank_is_not_said() -> None:
    group = RankGroup("0", (0,), 1)
    call = RecordedCall(0, group, 0, "all_reduce", start_ns=0, end_ns=9)
    job = training_job([RankTrace("r", "t", 0, (call,), 1)])
    assert exposure(job) is None
    assert signatures(job)[0].exposed is None
