"""The memory that the calls of a replayed rank share, and what must be in it in the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmark_trials import BenchmarkTrial
from hypothesis import given
from hypothesis import strategies as st
from sample_cases import CASE

from commbench.core.program import PERIOD
from commbench.core.variables import Case
from commbench_replay.benchmark import Replay
from commbench_replay.memory import rank_memory
from commbench_replay.parts import Part
from commbench_replay.workload import (
    SEND_RECV,
    RankOrder,
    Workload,
    WorkloadCall,
    WorkloadOperation,
)
from commbench_replay.workload_file import workload_text

RANKS = 3
WORLD = tuple(range(RANKS))
ROOTED = ("broadcast", "reduce", "gather", "scatter")
MANY_IN = ("reduce_scatter", "scatter", "all_to_all")
MANY_OUT = ("all_gather", "gather", "all_to_all")


def operation(name: str, elements: int, root: int = 0, dtype: str = "float32") -> WorkloadOperation:
    """Among all ranks, with blocks of that length."""
    item_bytes = {"float32": 4, "int8": 1}[dtype]
    if name == "all_to_all_v":
        counts = tuple(
            tuple((elements * (rank + 2 * peer + 1)) % (elements + 7) for peer in WORLD)
            for rank in WORLD
        )
        sent = tuple(item_bytes * sum(row) for row in counts)
        received = tuple(item_bytes * sum(column) for column in zip(*counts, strict=True))
        return WorkloadOperation(0, name, dtype, sent, received, counts)
    block_bytes = elements * item_bytes
    return WorkloadOperation(
        0,
        name,
        dtype,
        (block_bytes * (RANKS if name in MANY_IN else 1),),
        (block_bytes * (RANKS if name in MANY_OUT else 1),),
        root=root if name in ROOTED else None,
        peers=(root, (root + 1) % RANKS) if name == SEND_RECV else None,
    )


def replay_of(
    folder: Path, operations: list[WorkloadOperation], orders: tuple[RankOrder, ...]
) -> tuple[Replay, Case]:
    path = folder / "job.json"
    path.write_text(
        workload_text(Workload(RANKS, (WORLD,), tuple(operations), orders, unknown=("gaps",)))
    )
    job = Replay(str(path))
    case = replace(CASE, benchmark="replay", layout=f"1x{RANKS}", elements=0, message_bytes=0)
    return job, next(iter(job.variants(replace(case, gaps="none"), RANKS)))


def same_order(calls: list[WorkloadCall]) -> tuple[RankOrder, ...]:
    return (RankOrder(WORLD, tuple(calls)),)


def test_calls_whose_counts_differ_need_the_memory_of_the_largest(tmp_path: Path) -> None:
    sizes = [40, 4000, 13, 900, 2500]
    operations = [operation("all_to_all_v", size) for size in sizes]
    job, case = replay_of(tmp_path, operations, same_order([*map(WorkloadCall, range(5))]))
    for rank in WORLD:
        source, data = job.buffers(case, rank, RANKS)
        assert source.count == max(max(each.input_bytes[rank] for each in operations) // 4, 1)
        assert data.count == max(max(each.output_bytes[rank] for each in operations) // 4, 1)
        assert job.program(case, rank, RANKS).rewrites  # the row says that the last write counts


def test_what_runs_at_once_writes_to_memory_of_its_own_in_the_size_that_it_needs(
    tmp_path: Path,
) -> None:
    operations = [operation("all_gather", 5000), operation("all_gather", 10)]
    calls = [WorkloadCall(0), WorkloadCall(1, concurrent=1)] * 4
    job, case = replay_of(tmp_path, operations, same_order(calls))
    sizes = sorted(spec.count for spec in job.buffers(case, 0, RANKS))
    assert sizes == [10 * RANKS, 5000, 5000 * RANKS]


def test_the_end_of_a_longer_write_is_checked_behind_a_shorter_one(tmp_path: Path) -> None:
    operations = [operation("all_gather", 2000), operation("all_to_all_v", 300)]
    job, case = replay_of(tmp_path, operations, same_order([WorkloadCall(0), WorkloadCall(1)]))
    trial = BenchmarkTrial(job, case, RANKS)
    trial.run(2)
    (held,) = (held for held in trial.expected if held[0] == 1)
    words = trial.buffers[1][held[1]].words()
    last_write = operations[1].output_bytes[1] // 4
    assert trial.count(*held) == 0 and len(words) == RANKS * 2000
    for element in (0, last_write - 1, last_write, len(words) - 1):
        kept = words[element]
        words[element] += 1
        assert trial.count(*held) == 1
        words[element] = kept


def test_an_operation_that_is_called_again_has_the_last_write(tmp_path: Path) -> None:
    operations = [operation("all_gather", 100), operation("all_to_all", 100)]
    job, case = replay_of(tmp_path, operations, same_order([*map(WorkloadCall, (0, 1, 0))]))
    trial = BenchmarkTrial(job, case, RANKS)
    trial.run(1)
    assert set(trial.wrong().values()) == {0}


def test_a_last_write_to_another_place_is_seen(tmp_path: Path) -> None:
    """The blocks of two senders in exchanged order."""
    operations = [operation("all_gather", 700), operation("all_to_all", 100)]
    job, case = replay_of(tmp_path, operations, same_order([WorkloadCall(0), WorkloadCall(1)]))
    trial = BenchmarkTrial(job, case, RANKS)
    trial.run(1)
    (held,) = (held for held in trial.expected if held[0] == 2)
    words = trial.buffers[2][held[1]].words()
    words[:200] = np.concatenate([words[100:200], words[:100]])
    assert trial.count(*held) > 150


OPERATIONS = [
    *(
        operation(name, elements, root)
        for name in (*ROOTED, SEND_RECV)
        for elements in (1, 70, PERIOD + 5)
        for root in (0, 2)
    ),
    *(
        operation(name, elements)
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v")
        for elements in (1, 90, 2 * PERIOD + 3)
    ),
    operation("all_gather", 33, dtype="int8"),
    operation("all_to_all_v", 4, dtype="int8"),
    WorkloadOperation(0, "barrier", None, (0,), (0,)),
]


MESSAGES = [number for number, each in enumerate(OPERATIONS) if each.peers]
COLLECTIVES = [number for number, each in enumerate(OPERATIONS) if not each.peers]


@st.composite
def calls_at_once(draw: st.DrawFn) -> list[WorkloadCall]:
    """Collectives, each of which begins beside some of those before it that still run."""
    calls: list[WorkloadCall] = []
    for number in draw(st.lists(st.sampled_from(COLLECTIVES), min_size=1, max_size=12)):
        running = calls[-1].concurrent + 1 if calls else 0
        calls.append(WorkloadCall(number, concurrent=draw(st.integers(0, running))))
    return calls


@st.composite
def calls_in_turn(draw: st.DrawFn) -> list[WorkloadCall]:
    """Messages among collectives."""
    numbers = st.sampled_from([*COLLECTIVES, *MESSAGES])
    return [*map(WorkloadCall, draw(st.lists(numbers, min_size=1, max_size=12)))]


@given(st.one_of(calls_at_once(), calls_in_turn()))
def test_every_order_of_calls_ends_with_what_is_expected(
    tmp_path_factory: pytest.TempPathFactory, calls: list[WorkloadCall]
) -> None:
    own_calls = {rank: tuple(call for call in calls if takes_part(call, rank)) for rank in WORLD}
    orders = tuple(RankOrder((rank,), own) for rank, own in own_calls.items() if own)
    job, case = replay_of(tmp_path_factory.mktemp("jobs"), OPERATIONS, orders)
    trial = BenchmarkTrial(job, case, RANKS)
    trial.run(2)
    assert not any(trial.wrong().values())


@given(calls_at_once())
def test_no_two_calls_that_run_at_once_write_to_the_same_memory(calls: list[WorkloadCall]) -> None:
    parts = {number: Part.of(number, each, WORLD, "cpu") for number, each in enumerate(OPERATIONS)}
    memory = rank_memory(parts, 0, calls)
    for place, call in enumerate(calls):
        others = range(max(0, place - call.concurrent), place)
        for spec, kind in parts[call.operation].memory_kinds(0):
            name = memory.names[place][spec.name]
            assert memory.memories[name].spec.count >= spec.count
            if kind.is_written:
                assert not any(name in memory.names[other].values() for other in others)


def takes_part(call: WorkloadCall, rank: int) -> bool:
    peers = OPERATIONS[call.operation].peers
    return peers is None or rank in peers
