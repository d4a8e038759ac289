"""Flight Recorder dumps: no pickle runs code, and what the ring has lost is counted."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from trace_writers import Call, write_flight_recorder

from commbench.core.errors import Unreadable
from commbench.workloads.readers.flight_recorder import LOST_CALLS, FlightRecorder
from commbench.workloads.readers.registry import read_traces
from commbench.workloads.trace_files import TraceFile

SCHEDULE = [Call("0", (0, 1), "all_reduce", "float32", size) for size in (1, 2, 3, 4)]


class _Command:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def read(content: bytes) -> Any:
    return FlightRecorder().read(TraceFile("nccl_trace_rank_0", io.BytesIO(content)))


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


def test_numbers_missing_between_two_calls_are_counted(tmp_path: Path) -> None:
    write_flight_recorder(SCHEDULE, tmp_path)
    for path in tmp_path.iterdir():
        text = path.read_text().replace('"collective_seq_id": 3', '"collective_seq_id": 9')
        path.write_text(text)
    traces, _ = read_traces([str(tmp_path)])
    assert [trace.notes for trace in traces] == [{LOST_CALLS: 6}] * 2


def test_the_rank_may_stand_behind_a_host_in_the_name() -> None:
    dump = pickle.dumps({"entries": []})
    file = TraceFile("nccl_trace_rank_container-node02_5", io.BytesIO(dump))
    (trace,) = FlightRecorder().read(file)
    assert trace.rank == 5
