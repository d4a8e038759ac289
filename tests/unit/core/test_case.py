"""A case's identity does not change by accident."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from commbench.benchmarks.all_reduce import AllReduce
from commbench.benchmarks.p2p_bandwidth import P2PBandwidth
from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.core.case import Planned, World, version_of
from commbench.core.program import PERIOD, Barrier, Pattern, Program, Segment
from commbench.core.variables import Case

CASE = Case(
    benchmark="p2p_bandwidth",
    backend="gloo",
    engine="python",
    timer="host",
    timing="default",
    sync="none",
    device="cpu",
    dtype="float32",
    layout="1x4",
    pair="0-3",
    message_bytes=4096,
    elements=1024,
    window=64,
    in_place=None,
    reduction=None,
    root=None,
    schedule=None,
    streams=None,
    staging="none",
    cache="rotate",
    cuda_ipc="auto",
    interface=None,
    env=(("A", "1"),),
)
OTHERS: dict[str, Any] = {
    "message_bytes": 8192,
    "elements": 2048,
    "window": 32,
    "in_place": True,
    "root": 0,
    "streams": 1,
    "env": (("A", "2"),),
}


def planned(benchmark: Any, case: Case, size: int) -> Planned:
    return Planned(0, case, benchmark, tuple(range(size)), 1, 0, None)


def test_a_case_keeps_its_id() -> None:
    """Results of different versions are joined by it: a change here needs a new SCHEMA_VERSION."""
    assert CASE.case_id == "791ecdbdcad49763"


@pytest.mark.parametrize("name", [field.name for field in fields(Case)])
def test_every_variable_is_part_of_the_id(name: str) -> None:
    assert replace(CASE, **{name: OTHERS.get(name, "other")}).case_id != CASE.case_id


def test_equal_cases_have_equal_ids() -> None:
    assert replace(CASE).case_id == CASE.case_id
    assert replace(CASE, in_place=False).case_id != replace(CASE, in_place=None).case_id


@pytest.mark.parametrize(
    ("pair", "pairs"),
    [(None, ()), ("0-1", ((0, 1),)), ("10-2", ((10, 2),)), ("0-2 1-3", ((0, 2), (1, 3)))],
)
def test_pairs_are_read_from_the_text(pair: str | None, pairs: tuple[tuple[int, int], ...]) -> None:
    assert replace(CASE, pair=pair).pairs == pairs


def test_a_case_can_be_named_in_a_line() -> None:
    assert str(CASE) == "p2p_bandwidth 1x4 0-3 float32 4 KiB"
    assert str(replace(CASE, pair=None)) == "p2p_bandwidth 1x4 float32 4 KiB"


def test_a_world_knows_its_nodes() -> None:
    world = World(0, 5, ((0, 1, 2), (3, 4)), (0,))
    assert world.ranks_per_node == 3
    assert [world.node_of(rank) for rank in range(5)] == [0, 0, 0, 1, 1]


def test_repeating_a_program_repeats_what_is_timed() -> None:
    program = Program(steps=(Barrier(),), reset=(Barrier(),)).repeated(3)
    assert (len(program.steps), len(program.reset)) == (3, 1)


def test_a_pattern_counts_all_segments() -> None:
    period = np.ones(PERIOD, dtype=np.int64)
    assert Pattern((Segment(3, period), Segment(4, period, shift=9))).count == 7


def test_the_senders_are_rows_of_the_ranks_that_take_part() -> None:
    job = planned(P2PBandwidth(), replace(CASE, pair="3-1"), 4)
    assert job.active == (1, 3)
    assert job.senders == (1,)  # rank 3 sends; the stamps hold ranks 1 and 3
    assert job.shape.operations == 64


def test_in_a_collective_everybody_sends() -> None:
    job = planned(
        AllReduce(),
        replace(CASE, benchmark="all_reduce", pair=None, window=None, reduction="sum"),
        4,
    )
    assert job.active == job.senders == (0, 1, 2, 3)


def test_a_program_is_built_once_and_not_by_a_copy_of_the_case() -> None:
    job = planned(P2PBandwidth(), replace(CASE, pair="3-1"), 4)
    assert job.program(3) is job.program(3)
    assert job.program(3) == P2PBandwidth().program(job.case, 3, 4)
    assert replace(job, order=1).program(3) is not job.program(3)


def test_a_rank_alone_talks_to_itself() -> None:
    job = planned(P2PLatency(), replace(CASE, benchmark="p2p_latency", pair="2-2", window=None), 4)
    assert (job.active, job.senders) == ((2,), (0,))


def test_neighbours_and_local_rank_follow_the_nodes_whatever_the_mapping() -> None:
    cyclic = World(3, 4, ((0, 2), (1, 3)), (3,))
    assert (cyclic.neighbours, cyclic.local_rank) == ((1, 3), 1)
    assert (replace(cyclic, rank=1).local_rank, replace(cyclic, rank=2).neighbours) == (0, (0, 2))


@pytest.mark.parametrize(
    ("library", "version"),
    [
        ("Open MPI v5.0.11", "5.0.11"),
        ("torch 2.13.0+cpu gloo", "2.13.0+cpu"),
        ("kernel 6.1.0-18-amd64 tcp", "6.1.0-18-amd64"),
        ("NCCL 2.28.9, torch 2.13.0", "2.28.9"),
        ("commbench simulated", None),
        ("MPICH 5", None),
        (None, None),
    ],
)
def test_the_version_of_a_library(library: str | None, version: str | None) -> None:
    assert version_of(library) == version


def test_a_case_of_many_pairs_is_named_by_the_first_and_the_last() -> None:
    pairs = " ".join(f"{2 * pair}-{2 * pair + 1}" for pair in range(500))
    assert f"0-1 .. 998-999 (500 at once) {CASE.dtype}" in str(replace(CASE, pair=pairs))
    assert " 0-2 1-3 " in str(replace(CASE, pair="0-2 1-3"))
