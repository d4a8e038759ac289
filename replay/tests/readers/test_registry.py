"""Every reader returns the same table of the same job."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import TRACES
from trace_writers import (
    TORCH_TYPES,
    WRITABLE,
    WRITERS,
    Call,
    Schedule,
    expected_rows,
)

from commbench_replay.operations import RecordedCall
from commbench_replay.readers.registry import READERS, read_traces
from commbench_replay.training_job import training_job

WORLD = 4
GROUPS = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3), "3": (1, 3)}


@st.composite
def drawn_calls(draw: st.DrawFn) -> Call:
    name = draw(st.sampled_from(list(GROUPS)))
    ranks = GROUPS[name]
    kinds = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
    operation = draw(st.sampled_from([*kinds, "all_to_all_v"]))
    dtype = draw(st.sampled_from(list(TORCH_TYPES)))
    matrix: tuple[tuple[int, ...], ...] = ()
    if operation == "all_to_all_v":
        cell = st.integers(0, 5)
        row = st.tuples(*[cell] * len(ranks))
        # rank r gets r more than it sends, so that it is uneven on every rank
        drawn = draw(st.tuples(*[row] * len(ranks)))
        matrix = tuple(
            tuple(value + 10 * (place + 1) for place, value in enumerate(line)) for line in drawn
        )
    return Call(name, ranks, operation, dtype, draw(st.integers(1, 2**20)), matrix)


SCHEDULES = st.lists(drawn_calls(), min_size=1, max_size=6).map(
    lambda calls: [Call("0", GROUPS["0"], "all_reduce", "float32", 1), *calls]
)


def table(calls: list[RecordedCall]) -> list[tuple[object, ...]]:
    return [
        (
            call.rank,
            call.group.ranks,
            call.sequence,
            call.operation,
            call.dtype,
            call.input_bytes,
            call.output_bytes,
        )
        for call in calls
    ]


@given(schedule=SCHEDULES)
def test_every_reader_returns_the_table_of_the_schedule(schedule: Schedule) -> None:
    for name, write in WRITERS.items():
        writable = WRITABLE.get(name)
        written = [call for call in schedule if writable is None or call.operation in writable]
        with TemporaryDirectory() as folder:
            write(written, Path(folder))
            traces, left_out = read_traces([folder])
        job = training_job(traces)
        calls = [call for rank in job.ranks for call in job.calls[rank]]
        rows = expected_rows(written)
        assert table(calls) == rows, name
        assert left_out == {} and len(job.ranks) == WORLD
        assert all(collective.complete for collective in job.collectives)


def test_every_reader_has_a_writer_of_its_format() -> None:
    assert {reader.form for reader in READERS} <= set(WRITERS)


@given(schedule=SCHEDULES)
def test_splits_are_those_of_the_schedule_in_formats_that_have_them(schedule: Schedule) -> None:
    for name in ("torch profiler", "execution trace", "commbench workload"):
        with TemporaryDirectory() as folder:
            WRITERS[name](schedule, Path(folder))
            job = training_job(read_traces([folder])[0])
        for rank in job.ranks:
            called = [call for call in schedule if rank in call.ranks]
            for call, known in zip(called, job.calls[rank], strict=True):
                sent, received = call.splits(rank)
                assert known.send_counts == (tuple(sent) or None)
                assert known.receive_counts == (tuple(received) or None)


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs real traces in {TRACES}")
def test_one_job_in_two_formats_is_the_same_table() -> None:
    tables = []
    for name in ("kineto_dlrm_v100_8rank_old", "et_dlrm_v100_8rank_1.0.1"):
        job = training_job(read_traces([str(TRACES / name)])[0])
        tables.append(table([call for rank in job.ranks for call in job.calls[rank]]))
    assert tables[0] == tables[1] and len(tables[0]) == 64
