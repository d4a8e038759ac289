"""Profiles that contradict themselves, are of several processes, or have a defect somewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_writers import Call, write_kineto

from commbench.core.errors import Unreadable
from commbench_replay.analysis import exposure
from commbench_replay.analysis_text import job_text
from commbench_replay.json_stream import NOT_UTF8
from commbench_replay.operations import RankTrace
from commbench_replay.readers.profiled_work import UNLINKED_KERNELS
from commbench_replay.readers.registry import read_traces
from commbench_replay.readers.torch_profiler import (
    CUT_KERNELS,
    NEGATIVE,
    UNLINKED_CALLS,
    UNTIMED,
)
from commbench_replay.training_job import TrainingJob, training_job

SCHEDULE = [Call("0", (0, 1), "all_reduce", "float32", 8)] * 2


def job(folder: Path) -> TrainingJob:
    return training_job(read_traces([str(folder)])[0])


def documents(folder: Path) -> dict[Path, Any]:
    write_kineto(SCHEDULE, folder, [(1000.0, 1100.0), (1300.0, 1400.0)])
    return {path: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


def named(document: Any, word: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if word in event["name"]]


def only(folder: Path, **events: Any) -> RankTrace:
    """Rank 0 of the schedule, with these values in its first event of each name."""
    document = documents(folder)[folder / "rank0.json"]
    for name, values in events.items():
        named(document, name)[0].update(values)
    path = folder / "alone" / "rank0.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document))
    (trace,) = read_traces([str(path)])[0]
    return trace


def test_a_kernel_that_ends_after_its_successor_hides_only_until_that_one_starts(
    tmp_path: Path,
) -> None:
    first, *_ = only(tmp_path, gemm={"dur": 1.6e6}).operations
    assert (first.start_ns, first.end_ns) == (1_001_010_000, 1_001_510_000)
    assert first.beside_ns == 290_000 + 100_000, "1010 to 1300 us, and the next kernel"
    # without a successor nothing contradicts it
    (tmp_path / "other").mkdir()
    path = tmp_path / "other" / "rank0.json"
    write_kineto(SCHEDULE, path.parent, [(1000.0, 1.6e6)])
    calls = read_traces([str(path)])[0][0].operations
    assert {call.beside_ns == call.duration_ns for call in calls} == {True}


def test_a_call_does_not_last_beyond_the_next_kernel_of_its_library(tmp_path: Path) -> None:
    trace = only(tmp_path, ncclDevKernel={"dur": 1.6e6})
    first, second = trace.operations
    assert first.end_ns == second.start_ns and trace.notes == {CUT_KERNELS: 1}


def test_negative_durations_are_counted_and_the_call_stays(tmp_path: Path) -> None:
    trace = only(tmp_path, ncclDevKernel={"dur": -5.0}, gemm={"dur": -1})
    assert [call.duration_ns is None for call in trace.operations] == [True, False]
    assert trace.notes == {NEGATIVE: 2} and UNLINKED_CALLS not in trace.notes
    assert trace.computing is not None and trace.computing.total_ns == 100_000


@pytest.mark.parametrize("name", ["c10d::", "record_param", "nccl:"])
def test_a_part_of_a_call_with_a_negative_duration_does_not_make_it_two(
    name: str, tmp_path: Path
) -> None:
    trace = only(tmp_path, **{name: {"dur": -3}})
    assert len(trace.operations) == 2 and trace.notes[NEGATIVE] == 1


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (("[TP00] 7", "[TP01] 8"), r"process \[TP00\] 7, process \[TP01\] 8"),
        ((7, 7), "rank 0, rank 1"),
    ],
)
def test_a_file_of_several_ranks_is_refused_with_what_to_do(
    labels: tuple[object, object], named: str, tmp_path: Path
) -> None:
    """As tools merge them, under what the first one says of itself."""
    merged, other = documents(tmp_path).values()
    for label, document in zip(labels, (merged, other), strict=True):
        for event in document["traceEvents"]:
            event["pid"] = label
    merged["traceEvents"] += other["traceEvents"]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(merged))
    with pytest.raises(Unreadable, match=rf"has the events of {named}, and .*each rank$"):
        read_traces([str(path)])


def test_the_control_has_no_notes(tmp_path: Path) -> None:
    documents(tmp_path)
    known = exposure(job(tmp_path))
    assert job(tmp_path).notes == {} and known is not None and known.operations == 4


@pytest.mark.parametrize("fillers", [0, 30_000])
def test_one_bad_event_that_is_not_needed_costs_no_rank(fillers: int, tmp_path: Path) -> None:
    """In a small file and in a large one the table is the same."""
    documents(tmp_path)
    control = job(tmp_path)
    path = tmp_path / "rank0.json"
    filler = b'{"cat": "python_function", "name": "x", "ts": 1, "dur": 1, "pid": 7, "tid": 7},\n'
    damaged = filler.replace(b"x", b'\xff "'), filler.replace(b"1,", b"1 ", 1)
    head, _, rest = path.read_bytes().partition(b'"traceEvents": [')
    events = filler * fillers + b"".join(damaged) + filler * fillers
    path.write_bytes(head + b'"traceEvents": [' + events + rest)
    found = job(tmp_path)
    assert found.calls == control.calls and found.ranks == (0, 1)
    assert found.notes[NOT_UTF8] == 1


PLUGIN = [
    {"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "pid": 9, "tid": 1, "ts": 1.5,
     "args": {"SeqNum": 0, "CommHash": 64, "Rank": 0, "Count": 8, "Datatype": "ncclFloat32"}},
    {"name": "AllReduce", "cat": "COLL", "ph": "e", "id": 0, "pid": 9, "tid": 1, "ts": 9.5},
]  # fmt: skip
KERNEL = {"ph": "X", "pid": 3, "tid": 7, "ts": 1.0, "dur": 2.0, "name": "ncclDevKernel_AllReduce"}
JAX = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [KERNEL]}
OTHER_PROGRAMS = {
    "of NCCL's profiler plugin, not of torch.profiler": PLUGIN,
    "of JAX or TensorFlow, not of torch.profiler": JAX,
    "of another program, not of torch.profiler": {"traceEvents": [{**KERNEL, "ts": "1"}]},
}


@pytest.mark.parametrize("reason", OTHER_PROGRAMS)
def test_traces_of_other_programs_are_refused_alone_and_left_out_beside_others(
    reason: str, tmp_path: Path
) -> None:
    documents(tmp_path)
    path = tmp_path / "rank2.json"
    path.write_text(json.dumps(OTHER_PROGRAMS[reason]))
    with pytest.raises(Unreadable, match=rf"rank2\.json: a Chrome trace {reason}; known are: "):
        read_traces([str(path)])
    traces, left_out = read_traces([str(tmp_path)])
    assert len(traces) == 2 and left_out == {str(path): f"a Chrome trace {reason}"}


def test_a_profile_whose_times_are_texts_is_refused(tmp_path: Path) -> None:
    document = documents(tmp_path)[tmp_path / "rank0.json"]
    for event in document["traceEvents"]:
        event["ts"] = str(event["ts"])
    path = tmp_path / "texts" / "rank0.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document))
    with pytest.raises(Unreadable, match=r"a profile whose times \(ts, dur\) are no numbers"):
        read_traces([str(path)])


def test_events_without_times_are_counted(tmp_path: Path) -> None:
    trace = only(tmp_path, ncclDevKernel={"ts": "1"}, gemm={"dur": None})
    assert [call.duration_ns is None for call in trace.operations] == [True, False]
    assert trace.notes == {UNTIMED: 2, UNLINKED_CALLS: 1}


def with_steps(document: Any, *steps: tuple[int, float, float]) -> None:
    document["traceEvents"] += [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 7, "tid": 7,
         "ts": start, "dur": end - start}
        for number, start, end in steps
    ]  # fmt: skip


def test_a_step_that_is_marked_twice_is_one(tmp_path: Path) -> None:
    for path, document in documents(tmp_path).items():
        with_steps(document, (3, 900, 1900), (3, 910, 1890), (4, 1900, 2900), (4, 1900, 2900))
        path.write_text(json.dumps(document))
    found = job(tmp_path)
    assert found.steps == 2 and found.step_s == pytest.approx(1e-3)
    assert [call.step for call in found.calls[0]] == [3, 4]
    assert found.windows_ns[0] == (1_000_900_000, 1_000_900_000 + 2_000_000)


def test_kernels_are_known_by_their_launch_without_metadata_of_their_own(tmp_path: Path) -> None:
    """Whatever the case of their names, and of a launch with the number 0."""
    document = documents(tmp_path)[tmp_path / "rank0.json"]
    for word in ("ncclDevKernel", "cudaLaunchKernelExC"):
        named(document, word)[0]["args"] = {"correlation": 0}
    for event in named(document, "ncclDevKernel"):
        event["name"] = event["name"].lower()
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    found = job(tmp_path)
    assert [call.duration_ns for call in found.calls[0]] == [500_000] * 2 and found.notes == {}
    assert all(collective.complete for collective in found.collectives)


def test_kernels_of_a_graph_belong_to_no_call_and_are_said(tmp_path: Path) -> None:
    """Its launch lies behind the calls, and its kernels have one number."""
    document = documents(tmp_path)[tmp_path / "rank0.json"]
    launch, kernel = named(document, "cudaLaunchKernelExC")[0], named(document, "ncclDevKernel")[0]
    graph = {"args": {"correlation": 7}}
    document["traceEvents"] += [
        {**launch, **graph, "name": "cudaGraphLaunch", "ts": 3000.0},
        *({**kernel, **graph, "ts": 3010.0 + 10 * place, "dur": 30.0} for place in range(3)),
    ]
    (tmp_path / "rank0.json").write_text(json.dumps(document))
    found = job(tmp_path)
    assert found.notes == {UNLINKED_KERNELS: 3} and found.is_least
    assert "saves is not known: times are of a part" in job_text(found, {}).replace("\n    ", " ")
    assert [call.duration_ns for call in found.calls[0]] == [500_000] * 2
