"""Execution traces of real jobs, schemas 1.0.1 to 1.1.1."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pytest
from loops import for_each
from places import TRACES

from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.operations import RankTrace
from commbench_replay.readers.execution_trace import UNREADABLE_CALLS, ExecutionTrace
from commbench_replay.readers.registry import read_traces

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs real traces in {TRACES}")


def only(name: str) -> RankTrace:
    (trace,) = read_traces([str(TRACES / name)])[0]
    return trace


@needs_traces
def test_uneven_splits_are_read_where_only_the_shapes_differ() -> None:
    traces, _ = read_traces([str(TRACES / "et_dlrm_v100_8rank_1.0.1")])
    calls = [
        call for trace in traces for call in trace.operations if call.operation == "all_to_all_v"
    ]
    assert [call.rank for call in calls] == list(range(8))
    assert calls[1].send_counts == (96, 224, 288, 1664, 592, 96, 192, 240)
    assert calls[1].receive_counts == (224,) * 8


@needs_traces
@for_each("name", ["et_resnet_ddp_1rank_1.0.3", "et_resnet_ddp_1rank_1.1.1"])
def test_later_schemas_have_the_ranks_of_groups(name: str) -> None:
    trace = only(name)
    assert Counter(call.operation for call in trace.operations) == {
        "all_reduce": 15,
        "broadcast": 6,
    }
    assert {call.group.ranks for call in trace.operations} == {(0,)} and not trace.notes


@needs_traces
def test_a_group_is_found_by_its_address_and_other_members_of_the_archive_are_left() -> None:
    trace = only("et_allgather_2rank_1.0.2")
    assert Counter(call.operation for call in trace.operations) == {"all_gather": 10}
    assert {(call.input_bytes, call.output_bytes) for call in trace.operations} == {(4, 8)}
    assert {call.group.ranks for call in trace.operations} == {(0, 1)}


@for_each(
    "inputs",
    [
        [],
        ["allreduce"],
        [[], 1, None, 0, "unheard_of", [], []],
        [2**70, {}, [], "x", 3.5],
    ],
)
def test_calls_of_an_unknown_form_are_counted(inputs: list[Any]) -> None:
    node = {"id": 1, "name": "record_param_comms", "inputs": inputs}
    text = json.dumps({"schema": "9", "nodes": [node]}).encode()
    (trace,) = ExecutionTrace().read(ForeignFile("rank0.json", io.BytesIO(text)))
    assert trace.operations == () and trace.notes == {UNREADABLE_CALLS: 1}
