"""Chakra traces: those of others, cut ones, and ones that are something else."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import for_each
from places import TRACES
from trace_writers import Call, write_chakra

from commbench.core.errors import Unreadable
from commbench.replay.readers.chakra import Chakra
from commbench.replay.readers.registry import read_traces
from commbench.replay.trace_files import TraceFile

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs real traces in {TRACES}")


@needs_traces
def test_calls_on_the_cpu_side_of_a_converted_trace_are_not_counted_again() -> None:
    (trace,), _ = read_traces([str(TRACES / "chakra_protobuf_et")])
    assert [call.input_bytes for call in trace.operations][:2] == [212_480, 424]
    assert [call.operation for call in trace.operations] == ["broadcast"] * 2 + ["all_reduce"] * 5
    assert trace.operations[0].duration_ns == 28_000


@needs_traces
@for_each(("name", "size"), [("all_reduce", 2**20), ("all_to_all", 2**20), ("all_gather", None)])
def test_a_size_that_is_not_clear_is_not_known(name: str, size: int | None) -> None:
    files = [str(TRACES / "chakra_et_synthetic_4npu" / f"{name}.{rank}.et") for rank in range(4)]
    traces, _ = read_traces(files)
    calls = [call for trace in traces for call in trace.operations]
    assert [(call.rank, call.operation, call.input_bytes) for call in calls] == [
        (rank, name, size) for rank in range(4)
    ]


def test_a_cut_file_counts_until_there(tmp_path: Path) -> None:
    write_chakra([Call("0", (0, 1), "all_reduce", "int8", 8)] * 2, tmp_path)
    path = tmp_path / "job.0.et"
    path.write_bytes(path.read_bytes()[:-5])
    (trace,), _ = read_traces([str(path)])
    assert len(trace.operations) == 1 and any("end early" in note for note in trace.notes)


@given(content=st.binary(min_size=1, max_size=60))
def test_any_bytes_are_read_or_refused_in_one_line(content: bytes) -> None:
    try:
        Chakra().read(TraceFile("job.0.et", io.BytesIO(content)))
    except Unreadable as error:
        assert "\n" not in str(error)
