"""Profiles of gloo, as torch 2.13 writes them: what one rank's file says and what another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commbench.core.errors import Unreadable
from commbench_replay.operations import RecordedCall
from commbench_replay.readers.registry import read_traces
from commbench_replay.training_job import SCATTERED, TrainingJob, training_job

ROW = 512  # elements of a token


def event(name: str, start_us: int, end_us: int, **args: Any) -> dict[str, Any]:
    category = "user_annotation" if name.startswith("gloo:") else "cpu_op"
    thread = 2 if name.startswith("gloo:") else 1
    span = {"ts": start_us, "dur": end_us - start_us, "tid": thread, "pid": 1}
    return {"ph": "X", "cat": category, "name": name, **span, "args": args}


def job(folder: Path, *of_ranks: list[dict[str, Any]]) -> TrainingJob:
    """Rank 0 lists a group of itself, too."""
    for rank, events in enumerate(of_ranks):
        groups = [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]
        if rank == 0:
            groups.append({"pg_name": "1", "pg_size": 1, "ranks": [0]})
        facts = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": groups}
        document = {"schemaVersion": 1, "distributedInfo": facts, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return training_job(read_traces([str(folder)])[0])


def calls(seen: TrainingJob) -> list[RecordedCall]:
    return [call for rank in seen.ranks for call in seen.calls[rank]]


def all_to_all(sent: list[int], received: list[int]) -> list[dict[str, Any]]:
    """Of tokens: torch's splits count rows of its tensors."""
    shapes = [[sum(received), ROW], [sum(sent), ROW], [], [], []]
    types = ["float", "float", "", "ScalarList", "ScalarList"]
    inputs = ["", "", "", str(received), str(sent)]
    args = {"Input Dims": shapes, "Input type": types, "Concrete Inputs": inputs}
    return [event("c10d::alltoall_base_", 0, 1, **args), event("gloo:all_to_all", 2, 9)]


def scatter(is_root: bool) -> list[dict[str, Any]]:
    """Only the root's work has shapes of its inputs."""
    types = ["TensorList", "ScalarList", "", "Scalar"]
    args = {"Input Dims": [[[ROW]], [], [], []], "Input type": types}
    work = {"Input Dims": [[ROW], [ROW]], "Input type": ["float", "float"]} if is_root else {}
    concrete = {"Concrete Inputs": ["", "", "", "1", "False"]}
    return [event("c10d::scatter_", 0, 1, **args, **concrete), event("gloo:scatter", 2, 9, **work)]


def test_splits_of_rows_are_counted_in_elements(tmp_path: Path) -> None:
    seen = job(tmp_path, all_to_all([1, 2], [1, 4]), all_to_all([4, 5], [2, 5]))
    assert [(call.operation, call.send_counts) for call in calls(seen)] == [
        ("all_to_all_v", (ROW, 2 * ROW)),
        ("all_to_all_v", (4 * ROW, 5 * ROW)),
    ]
    assert seen.notes == {} and all(each.complete for each in seen.collectives)


def test_splits_that_do_not_add_up_are_not_taken(tmp_path: Path) -> None:
    first = all_to_all([1, 2], [1, 4])
    first[0]["args"]["Concrete Inputs"][4] = "[1, 1]"
    seen = job(tmp_path, first, all_to_all([4, 5], [2, 5]))
    assert calls(seen)[0].send_counts is None and list(seen.notes.values()) == [1]


def test_a_scatter_has_the_bytes_that_its_root_recorded(tmp_path: Path) -> None:
    seen = job(tmp_path, scatter(is_root=False), scatter(is_root=True))
    seen_bytes = [(call.dtype, call.input_bytes, call.output_bytes) for call in calls(seen)]
    assert seen_bytes == [("float32", 2 * 4 * ROW, 4 * ROW)] * 2
    assert {call.root for call in calls(seen)} == {1}
    assert seen.notes == {}


def test_without_the_trace_of_its_root_a_scatter_has_no_bytes_and_says_so(tmp_path: Path) -> None:
    seen = job(tmp_path, scatter(is_root=False))
    (call,) = calls(seen)
    assert (call.dtype, call.input_bytes) == (None, None)
    assert seen.notes == {SCATTERED: 1}


def test_ranks_that_disagree_on_what_they_receive_are_refused(tmp_path: Path) -> None:
    def gather(received: int) -> list[dict[str, Any]]:
        args = {"Input Dims": [[received], [ROW]], "Input type": ["float", "float"]}
        return [event("c10d::_allgather_base_", 0, 1, **args), event("gloo:all_gather", 2, 9)]

    with pytest.raises(Unreadable, match=r"disagree on operation 0: rank 1 .* \(6144 B out\)"):
        job(tmp_path, gather(2 * ROW), gather(3 * ROW))
