"""The answer about a job: sums over a part are lower bounds, and no share is computed from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import TRACES
from trace_writers import Call, write_gloo_kineto, write_kineto

from commbench_replay.analysis_text import job_text
from commbench_replay.readers.registry import read_traces
from commbench_replay.training_job import training_job

SCHEDULE = [Call("0", (0, 1), "all_reduce", "float32", 64)] * 2
STEPS = [(3, 900, 1900), (4, 1900, 2900)]


def answer(
    folder: Path, change: Callable[[int, list[Any]], object], schedule: list[Call] = SCHEDULE
) -> str:
    """Of a job with a call of 500 us on rank 0 and 460 on rank 1 in each step, after a change of
    the events of each rank."""
    write_kineto(schedule, folder, [(800.0, 900.0)])
    for rank, path in enumerate(sorted(folder.iterdir())):
        document = json.loads(path.read_text())
        common = {"ph": "X", "cat": "user_annotation", "pid": 7, "tid": 7}
        document["traceEvents"] += [
            {**common, "name": f"ProfilerStep#{number}", "ts": start, "dur": end - start}
            for number, start, end in STEPS
        ]
        change(rank, document["traceEvents"])
        path.write_text(json.dumps(document))
    return text_of(folder)


def text_of(folder: Path) -> str:
    traces, left_out = read_traces([str(folder)])
    return " ".join(job_text(training_job(traces), left_out).split())


def remove(events: list[Any], word: str) -> None:
    events.remove(next(event for event in events if word in event["name"]))


def test_a_whole_job_has_sums_and_shares(tmp_path: Path) -> None:
    text = answer(tmp_path, lambda rank, events: None)
    assert text.startswith("a step takes 1.00 ms, with 480 us of exposed communication 48% of")
    # of 500 and 460 us, all exposed, rank 0 waits 40
    assert "communication; an infinitely fast network saves at most 460 us, because" in text
    assert "20.0 us of the exposed time is waiting for ranks 2 of 2" in text
    assert "communication: 480 us a step on each rank, of which 20.0 us waiting" in text
    assert "waiting share exposed" in text and "at least" not in text


def test_waiting_in_one_of_several_groups_lowers_no_bound(tmp_path: Path) -> None:
    other = Call("1", (0, 1), "all_reduce", "float32", 64)
    text = answer(tmp_path, lambda rank, events: None, [SCHEDULE[0], other])
    assert "saves at most 480 us; 20.0 us of it is waiting, perhaps for other groups'" in text


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs real traces in {TRACES}")
def test_a_log_without_times_says_that_it_cannot_answer() -> None:
    text = text_of(TRACES / "et_dlrm_v100_8rank_1.0.1")
    assert text.startswith(
        "what a faster network saves is not known: this log has no times 8 of an"
    )


def test_lost_kernels_make_sums_lower_bounds_and_take_away_the_shares(tmp_path: Path) -> None:
    """Of a profiler that has lost those of the first step."""
    text = answer(tmp_path, lambda rank, events: remove(events, "ncclDevKernel"))
    assert text.startswith("a step takes 1.00 ms, with at least 240 us of exposed communication")
    assert "communication: at least 240 us a step on each rank (2 of 4 operations), of" in text
    assert "of which at least 10.0 us waiting" in text
    assert "job us share all_reduce" in text and "%" not in text
    assert "network saves is not known: times are of a part of the operations" in text


def test_a_rank_without_kernels_counts_in_a_lower_bound(tmp_path: Path) -> None:
    """The mean over the other ranks may be more than that over all."""

    def change(rank: int, events: list[Any]) -> None:
        if rank == 0:
            events[:] = [event for event in events if event["cat"] != "kernel"]

    text = answer(tmp_path, change)
    assert "with at least 230 us of exposed communication" in text
    assert "at least 230 us a step on each rank" in text and "at least 230 us exposed" in text


def test_a_rank_with_fewer_steps_makes_the_mean_of_a_step_a_lower_bound(tmp_path: Path) -> None:
    def change(rank: int, events: list[Any]) -> None:
        if rank == 1:
            remove(events, "ProfilerStep")

    assert "with at least 480 us of exposed communication" in answer(tmp_path, change)


def test_a_call_without_bytes_or_of_a_rank_alone_lacks_no_time(tmp_path: Path) -> None:
    alone = Call("1", (0,), "all_reduce", "float32", 64)

    def change(rank: int, events: list[Any]) -> None:
        if rank == 0:
            # launched last, by the call of its group of one rank
            events.remove([event for event in events if "ncclDevKernel" in event["name"]][-1])

    text = answer(tmp_path, change, [*SCHEDULE, alone])
    assert (
        text.startswith("a step takes 1.00 ms, with 480 us of exposed") and "at least" not in text
    )


@pytest.mark.parametrize("write", [write_kineto, write_gloo_kineto])
def test_a_file_that_ends_early_has_lower_bounds(write: Any, tmp_path: Path) -> None:
    write(SCHEDULE * 20, tmp_path)
    for path in tmp_path.iterdir():
        text = path.read_bytes()
        path.write_bytes(text[: len(text) // 2])
    text = text_of(tmp_path)
    assert text.startswith("the recording has at least ")
    assert "communication: at least " in text and "files that end early" in text
    assert "100%" not in text.partition("communication:")[0], "no share of all communication"
