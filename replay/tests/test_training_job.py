"""Calls of different ranks become one operation, or are refused with what contradicts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loops import for_each
from trace_writers import Call, Schedule, write_kineto

from commbench.core.errors import Unreadable
from commbench_replay.analysis import signatures
from commbench_replay.operations import RankGroup, RankTrace, RecordedCall
from commbench_replay.readers.profiled_call import CUT_SPLITS, NO_RANKS
from commbench_replay.readers.registry import read_traces
from commbench_replay.training_job import (
    UNEVEN_WINDOWS,
    UNMATCHED,
    TrainingJob,
    training_job,
)
from commbench_replay.waiting import waiting_of

PAIR = [Call("0", (0, 1), "all_reduce", "float32", size) for size in (1, 2)]
Event = dict[str, Any]


def changed(
    schedule: Schedule, folder: Path, rank: int, change: Callable[[dict[str, Any]], None]
) -> TrainingJob:
    """The job of a schedule after a change of one rank's profile."""
    write_kineto(schedule, folder)
    path = folder / f"rank{rank}.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return training_job(read_traces([str(folder)])[0])


def records(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of the calls in a profile."""
    return [
        event["args"] for event in document["traceEvents"] if "Group size" in event.get("args", {})
    ]


def reversed_calls(document: dict[str, Any]) -> None:
    first, second = records(document)
    first["In msg nelems"] = 2
    second["In msg nelems"] = 1


def another_rank(document: dict[str, Any]) -> None:
    document["distributedInfo"]["rank"] = 0


def another_world(document: dict[str, Any]) -> None:
    document["distributedInfo"]["world_size"] = 3


def another_group(document: dict[str, Any]) -> None:
    document["distributedInfo"]["world_size"] = 2
    document["distributedInfo"]["pg_config"] = []
    for record in records(document):
        record["Process Group Ranks"] = "[1, 2]"


def not_a_member(document: dict[str, Any]) -> None:
    document["distributedInfo"]["pg_config"] = []
    for record in records(document):
        record["Process Group Ranks"] = "[0, 5]"


@for_each(
    ("change", "message"),
    [
        (reversed_calls, "disagree on operation 0: rank .* all_reduce float32 of .* record the"),
        (another_rank, "rank 0 is in .*rank0.json and in .*rank1.json"),
        (another_world, "traces of different jobs: .* has 2 ranks, .* has 3 ranks"),
        (another_group, r"group '0' has the ranks 0-1 and 1-2: these are traces of different jobs"),
        (not_a_member, r"rank 1 is not in its own group '0' \(0,5\)"),
    ],
)
def test_traces_that_contradict_each_other_are_refused(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path_factory: Any
) -> None:
    with pytest.raises(Unreadable, match=message) as refused:
        changed(PAIR, tmp_path_factory.mktemp("job"), 1, change)
    assert "\n" not in str(refused.value)


def test_an_operation_that_one_rank_lacks_is_counted(tmp_path: Path) -> None:
    def cut(document: dict[str, Any]) -> None:
        document["traceEvents"] = document["traceEvents"][:7]

    job = changed(PAIR, tmp_path, 1, cut)
    assert job.notes == {UNEVEN_WINDOWS: 1}
    assert [collective.is_bound for collective in job.collectives] == [False, True]


WIDE = tuple(range(33))
WIDE_SPLITS = tuple(tuple(range(33)) for _ in WIDE)
WIDE_SCHEDULE = [
    Call("0", WIDE, "all_reduce", "float32", 8),
    Call("0", WIDE, "all_to_all_v", "float32", 0, WIDE_SPLITS),
]


def cut_lists(document: dict[str, Any], configured: bool, stride: int | None) -> None:
    """As torch writes lists of more than 30 numbers."""
    if not configured:
        document["distributedInfo"]["pg_config"] = []
    for record in records(document):
        for key in ("Process Group Ranks", "In split size", "Out split size"):
            if record[key] != "[]":
                record[key] = ", ".join(record[key].split(", ")[:30]) + ", ...]"
        if stride is not None:
            record |= {"Global rank start": 0, "Global rank stride": stride}


@for_each(
    ("configured", "stride", "known"), [(True, None, True), (False, 1, True), (False, None, False)]
)
def test_a_cut_list_of_ranks_is_rebuilt_where_the_trace_has_them_elsewhere(
    configured: bool, stride: int | None, known: bool, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("wide")
    write_kineto(WIDE_SCHEDULE, folder)
    path = folder / "rank2.json"
    document = json.loads(path.read_text())
    cut_lists(document, configured, stride)
    path.write_text(json.dumps(document))
    (trace,), _ = read_traces([str(path)])
    assert {call.group.ranks for call in trace.operations} == {WIDE if known else None}
    assert {call.group.size for call in trace.operations} == {33}
    assert trace.notes.get(NO_RANKS) == (None if known else 2)
    assert trace.notes[CUT_SPLITS] == 1 and trace.operations[1].send_counts is None


def call(rank: int, sequence: int, took_us: int, group: RankGroup) -> RecordedCall:
    start_ns = 10**9 * rank  # clocks of different hosts
    return RecordedCall(
        rank, group, sequence, "all_reduce", "float32", 4, 4, start_ns=start_ns,
        end_ns=start_ns + took_us * 1000,
    )  # fmt: skip


def job_of_durations(durations_us: Sequence[Sequence[int]], group: RankGroup) -> TrainingJob:
    """One trace a rank, whose calls took so long."""
    return training_job(
        [
            RankTrace(
                f"rank{rank}",
                "test",
                rank,
                tuple(call(rank, place, took, group) for place, took in enumerate(of_rank)),
            )
            for rank, of_rank in enumerate(durations_us)
        ]
    )


WORLD = RankGroup("0", (0, 1, 2), 3)


def test_what_goes_beyond_the_shortest_call_is_waiting_whatever_the_clocks_say() -> None:
    job = job_of_durations([(500, 100, 9), (510, 102, 5), (100, 101, 6)], WORLD)
    (row,) = signatures(job)
    assert row.job_ns == (5_000, 100_000) and not row.is_bound and row.calls == 3
    assert row.waiting_ns == 400_000 + 410_000 + 1_000 + 2_000 + 4_000 + 1_000


def test_ranks_without_known_groups_are_not_matched_where_their_calls_differ() -> None:
    unknown = RankGroup("?", None, None)
    job = job_of_durations([(500, 100), (100,)], unknown)
    assert len(job.collectives) == 2, "numbers alone agree"
    other = RankTrace("rank2", "test", 2, (RecordedCall(2, unknown, 0, "barrier", None, 0, 0),))
    traces = [RankTrace(f"r{rank}", "t", rank, job.calls[rank]) for rank in job.ranks]
    unmatched = [
        RankTrace(
            trace.source,
            trace.form,
            trace.rank,
            tuple(call(trace.rank, part.sequence, 5, unknown) for part in trace.operations),
        )
        for trace in traces
    ]
    mixed = training_job([*unmatched, other])
    assert mixed.notes == {UNMATCHED: 4}
    assert all(collective.is_bound for collective in mixed.collectives)
    assert waiting_of(mixed) is None


@pytest.mark.parametrize("part", [{"is_part": True}, {"foreign": {"deep_ep::dispatch": 3}}])
def test_communication_without_times_makes_sums_a_lower_bound(part: dict[str, Any]) -> None:
    whole = RankTrace("rank0", "test", 0, (call(0, 0, 500, WORLD),))
    assert not training_job([whole]).is_least
    assert training_job([replace(whole, **part)]).is_least
