"""Records of NCCL Inspector: durations, and those that were lost."""

from __future__ import annotations

from pathlib import Path

from trace_writers import Call, write_inspector

from commbench.replay.readers.nccl_inspector import LOST_RECORDS, NOT_A_RECORD
from commbench.replay.readers.registry import read_traces
from commbench.replay.training_job import training_job

SCHEDULE = [Call("0", (0, 1), "all_reduce", "float32", size) for size in (1, 2, 3, 4)]


def test_durations_give_the_time_without_waiting(tmp_path: Path) -> None:
    write_inspector(SCHEDULE, tmp_path)
    job = training_job(read_traces([str(tmp_path)])[0])
    assert [collective.job_ns for collective in job.collectives] == [100_000] * 4
    assert {tuple(collective.waiting_ns.values()) for collective in job.collectives} == {(0, 1000)}


def test_lost_records_and_other_lines_are_counted(tmp_path: Path) -> None:
    write_inspector(SCHEDULE, tmp_path)
    path = tmp_path / "node1-0.log"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "junk", '{"coll_perf": 3}', "[" * 99_999, *lines[2:]]))
    (trace,), _ = read_traces([str(path)])
    assert (trace.notes[LOST_RECORDS], trace.notes[NOT_A_RECORD]) == (1, 3)
    assert [call.sequence for call in trace.operations] == [0, 2, 3]
