"""Flight Recorder dumps: no pickle runs code, and what the ring has lost is counted."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from trace_writers import Call, write_flight_recorder

from commbench.core.errors import Unreadable
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.json_stream import NOT_UTF8
from commbench_replay.operations import RankTrace
from commbench_replay.readers.flight_recorder import LOST_CALLS, NO_SPLITS_HERE, FlightRecorder
from commbench_replay.readers.protocol import NO_FORMAT
from commbench_replay.readers.registry import read_traces

SCHEDULE = [Call("0", (0, 1), "all_reduce", "float32", size) for size in (1, 2, 3, 4)]


class _Command:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def read(content: bytes) -> Any:
    return FlightRecorder().read(ForeignFile("nccl_trace_rank_0", io.BytesIO(content)))


def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    with pytest.raises(Unreadable, match=r"posix\.mkdir, which would run code; dump it again"):
        read(pickle.dumps({"entries": [_Command(planted)]}))
    assert not planted.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80",
        b"\x80\x04\x95",
        pickle.dumps([1]),
        pickle.dumps({"a": 1}),
        b"\x80\x04" + b"(" * 9999,
    ],
)
def test_a_pickle_of_something_else_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(Unreadable, match="is no Flight Recorder dump") as refused:
        read(content)
    assert "\n" not in str(refused.value)


def test_pickles_of_other_programs_beside_dumps_are_left_out_and_named(tmp_path: Path) -> None:
    """As torch's memory snapshots, and what would run code."""
    write_flight_recorder(SCHEDULE, tmp_path)
    snapshot = {"segments": [{"address": 1, "blocks": []}], "device_traces": [[]], "entries": []}
    others = {"snapshot.pickle": snapshot, "data.pkl": [_Command(tmp_path / "planted")]}
    for name, value in others.items():
        (tmp_path / name).write_bytes(pickle.dumps(value))
    traces, left_out = read_traces([str(tmp_path)])
    assert len(traces) == 2
    assert left_out == {str(tmp_path / name): NO_FORMAT for name in others}
    assert not (tmp_path / "planted").exists()


def test_numbers_missing_between_two_calls_are_counted(tmp_path: Path) -> None:
    write_flight_recorder(SCHEDULE, tmp_path)
    for path in tmp_path.iterdir():
        text = path.read_text().replace('"collective_seq_id": 3', '"collective_seq_id": 9')
        path.write_text(text)
    traces, _ = read_traces([str(tmp_path)])
    assert [trace.notes for trace in traces] == [{LOST_CALLS: 6}] * 2


def test_the_rank_may_stand_behind_a_host_in_the_name() -> None:
    dump = pickle.dumps({"entries": []})
    file = ForeignFile("nccl_trace_rank_container-node02_5", io.BytesIO(dump))
    (trace,) = FlightRecorder().read(file)
    assert trace.rank == 5


ALL_TO_ALL = {
    "process_group": ("0", ""),
    "collective_seq_id": 1,
    "profiling_name": "nccl:all_to_all",
    "input_sizes": [[4, 10]],
    "input_dtypes": ["Float"],
    "output_sizes": [[5, 10]],
    "output_dtypes": ["Float"],
}


def called(**values: Any) -> RankTrace:
    dump = {"version": "2.11", "entries": [ALL_TO_ALL | values]}
    (trace,) = read(json.dumps(dump).encode())
    return trace


@pytest.mark.parametrize("unit", [1, 10])
def test_splits_are_elements_whether_they_count_those_or_rows(unit: int) -> None:
    trace = called(input_split_sizes=[3 * unit, unit], output_split_sizes=[3 * unit, 2 * unit])
    (call,) = trace.operations
    assert (call.operation, call.send_counts, call.receive_counts) == (
        "all_to_all_v", (30, 10), (30, 20),
    )  # fmt: skip
    assert NO_SPLITS_HERE not in trace.notes


def test_uneven_splits_of_as_many_elements_are_seen() -> None:
    splits = {"input_split_sizes": [3, 1], "output_split_sizes": [2, 2]}
    (call,) = called(output_sizes=[[4, 10]], **splits).operations
    assert (call.operation, call.send_counts, call.receive_counts) == (
        "all_to_all_v", (30, 10), (20, 20),
    )  # fmt: skip
    (call,) = called(output_sizes=[[4, 10]], input_split_sizes=[], output_split_sizes=[]).operations
    assert (call.operation, call.send_counts) == ("all_to_all", None)


@pytest.mark.parametrize("splits", [None, [3, 3], [-4, 8], "3, 1", [3, 1, None]])
def test_splits_that_are_missing_or_do_not_add_up_are_noted(splits: Any) -> None:
    trace = called(input_split_sizes=splits, output_split_sizes=[3, 2])
    assert trace.operations[0].send_counts is None and trace.notes[NO_SPLITS_HERE] == 1


def test_a_name_that_is_no_utf8_costs_no_rank(tmp_path: Path) -> None:
    dump = json.dumps({"entries": [ALL_TO_ALL], "host_name": "x"}).encode()
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(dump.replace(b'"x"', b'"\xff"'))
    (trace,), _ = read_traces([str(path)])
    assert len(trace.operations) == 1 and trace.notes[NOT_UTF8] == 1
