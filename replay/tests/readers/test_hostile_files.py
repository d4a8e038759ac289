"""Files with anything in any place: an answer, or one line, and nothing that a terminal acts on."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_writers import (
    Call,
    write_execution_trace,
    write_flight_recorder,
    write_kineto,
    write_nccl_log,
)

from commbench.core.errors import Unreadable
from commbench_replay.analysis_text import job_text, operations_csv
from commbench_replay.readers.registry import read_traces
from commbench_replay.recorded_workload import workload_of
from commbench_replay.training_job import training_job
from commbench_replay.workload_file import workload_text

SCHEDULE = [
    Call("0", (0, 1), "all_reduce", "float32", 8),
    Call("0", (0, 1), "all_to_all_v", "int32", 0, ((1, 2), (3, 4))),
]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0.5, 1e308, float("inf"), float("nan"), -1])
    | st.sampled_from(
        ["", "\x1b[2J", "[1, 2", "[0, 1, ...]", "nccl:send 0->1", "all_reduce", "wait"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "ranks", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
WRITTEN = {
    "kineto": write_kineto,
    "execution": write_execution_trace,
    "recorder": write_flight_recorder,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else ()
    parts = enumerate(value) if isinstance(value, list) else parts
    for key, part in parts:
        yield from places(part, (*path, key))


def read_all(folder: str) -> None:
    """As the command does."""
    try:
        traces, left_out = read_traces([folder])
        job = training_job(traces)
        texts = [job_text(job, left_out), operations_csv(job)]
        texts.append(workload_text(workload_of(job)))
    except Unreadable as error:
        texts = [str(error)]
        assert "\n" not in texts[0]
    assert not any("\x1b" in text for text in texts)


@pytest.mark.parametrize("name", list(WRITTEN))
@settings(max_examples=40)
@given(data=st.data())
def test_any_value_in_any_place_is_read_or_refused(name: str, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        WRITTEN[name](SCHEDULE, Path(folder))
        path = sorted(Path(folder).iterdir())[data.draw(st.integers(0, 1))]
        document = json.loads(path.read_text())
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.sampled_from(list(places(document))))
            at = document
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = data.draw(JUNK)
        path.write_text(json.dumps(document))
        read_all(folder)
        if name == "recorder":
            path.write_bytes(pickle.dumps(document))
            read_all(folder)


def test_a_process_with_a_name_for_the_terminal_is_refused_by_its_printable_name(
    tmp_path: Path,
) -> None:
    write_kineto(SCHEDULE, tmp_path)
    path = min(tmp_path.iterdir())
    document = json.loads(path.read_text())
    document["traceEvents"][5]["pid"] = "\x1b[2J"
    path.write_text(json.dumps(document))
    with pytest.raises(Unreadable, match=r"process \\x1b\[2J, and a profile is of one rank"):
        read_traces([str(tmp_path)])


@given(
    start=st.sampled_from([b"", b"{", b"[", b"\x80\x04", b"\x1f\x8b", b'{"traceEvents": [']),
    rest=st.binary(max_size=40),
    name=st.sampled_from(["rank0.json", "rank0", "x\x1b[2J0.tar.gz"]),
)
def test_any_bytes_in_a_file_are_read_or_refused(start: bytes, rest: bytes, name: str) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(start + rest)
        read_all(folder)


@given(cut=st.integers(0, 2000))
def test_a_log_that_is_cut_anywhere_is_read_or_refused(cut: int) -> None:
    with TemporaryDirectory() as folder:
        write_nccl_log(SCHEDULE[:1], Path(folder))
        for path in Path(folder).iterdir():
            path.write_bytes(path.read_bytes()[:cut])
        read_all(folder)


@pytest.mark.parametrize("depth", [300, 900, 5000])
def test_values_inside_values_without_end_are_refused(depth: int, tmp_path: Path) -> None:
    shape = "[" * depth + "]" * depth
    node = (
        '{"id": 1, "name": "record_param_comms", "inputs": {"values": [[], 1, "0", 0, "allreduce"]'
    )
    node += f', "shapes": [{shape}], "types": ["Tensor(float)"]}}}}'
    (tmp_path / "rank0.json").write_text(f'{{"schema": "1", "nodes": [{node}]}}')
    read_all(str(tmp_path))
