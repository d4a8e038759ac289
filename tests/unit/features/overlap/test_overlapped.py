"""The cases and programs of computation beside communication."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmark_trials import BenchmarkTrial, case_of
from sample_cases import CASE

from commbench.benchmarks.all_reduce import AllReduce
from commbench.benchmarks.each_node import OnEachNode
from commbench.benchmarks.p2p_bandwidth import P2PBandwidth
from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.core.case import Benchmark
from commbench.core.errors import ConfigError
from commbench.core.program import Matmul, MemoryStream, Program, Sleep, Start, WaitAll
from commbench.core.variables import Case, Overlap, Timed
from commbench.features.overlap.overlapped import (
    MATRIX_SIZE,
    Overlapped,
    compute_time_ns,
    overlap_cases,
)
from commbench.features.tcp.stream import Stream

TIMED: tuple[Timed, ...] = ("communication", "compute", "together", "compute_beside")


def programs(benchmark: Benchmark, overlap: Overlap, rank: int = 0, **axes: Any) -> list[Program]:
    """Of the cases of TIMED."""
    case = case_of(benchmark, 2, 12, **axes)
    by_timed = {each.timed: each for each in overlap_cases(replace(case, overlap=overlap))}
    return [
        Overlapped(benchmark, timed, compute_amount=500).program(by_timed[timed], rank, 2)
        for timed in TIMED
    ]


def test_an_overlap_stands_for_four_cases_and_shares_the_communication_with_others() -> None:
    def cases(overlap: Overlap, compute: str | None = None) -> list[Case]:
        return list(overlap_cases(replace(CASE, overlap=overlap, compute=compute)))

    assert {each.timed for each in cases("sleep")} == set(TIMED)
    (shared,) = {each.case_id for each in cases("sleep")} & {
        each.case_id for each in cases("matmul", "2ms")
    }
    assert shared == replace(CASE, timed="communication").case_id


def test_a_case_without_an_overlap_stays_as_it_is_and_has_no_time_of_a_computation() -> None:
    assert list(overlap_cases(CASE)) == [CASE]
    assert list(overlap_cases(replace(CASE, compute="1ms"))) == [CASE]


@pytest.mark.parametrize(
    "change",
    [{"timer": "host_sync"}, {"timer": "graph"}],
    ids=lambda change: str(change),
)
def test_the_computation_beside_is_left_out_where_the_clock_cannot_end_with_it(
    change: dict[str, Any],
) -> None:
    cases = overlap_cases(replace(CASE, overlap="matmul", **change))
    assert {each.timed for each in cases} == {"communication", "compute", "together"}


def test_a_collective_is_started_before_the_computation_and_waited_for_after_it() -> None:
    (step,) = AllReduce().program(case_of(AllReduce(), 2, 12), 0, 2).steps
    begun = (Start(step, 0),)
    rest = (WaitAll((0,)),)
    compute = Sleep(500)
    communication, alone, together, beside = programs(AllReduce(), "sleep")
    assert communication.steps == (*begun, *rest)
    assert (alone.steps, alone.buffers) == ((compute,), ())
    assert together.steps == (*begun, compute, *rest)
    assert (beside.lead, beside.steps, beside.after) == (begun, (compute,), rest)


def test_a_window_of_messages_is_posted_before_the_computation() -> None:
    for rank in (0, 1):
        _, _, together, _ = programs(P2PBandwidth(), "matmul", rank, pair="0-1", window=3)
        assert [type(step) for step in together.steps[:5]] == [Start] * 3 + [Matmul, WaitAll]


def test_the_amount_is_that_of_the_kind() -> None:
    assert programs(AllReduce(), "memory")[1].steps == (MemoryStream(500),)
    assert programs(AllReduce(), "matmul")[1].steps == (Matmul(MATRIX_SIZE, 500),)


def refusal(benchmark: Benchmark, joins_messages: bool = False, **axes: Any) -> str | None:
    case = replace(case_of(benchmark, 2, 12, **axes), overlap="sleep", timed="together")
    return Overlapped(benchmark, "together", joins_messages).refusal(case, 2)


def test_an_operation_that_waits_in_between_is_refused_with_what_is_possible() -> None:
    reason = refusal(P2PLatency(), pair="0-1")
    assert reason is not None and reason.startswith("p2p_latency waits more than once in a sample")


def test_a_stream_has_no_computation_beside_it() -> None:
    stream = {"pair": "0-1", "streams": 1}
    assert refusal(Stream(), **stream) == "a stream has no computation beside it"


def test_messages_that_a_backend_sends_in_the_wait_are_refused_and_its_collectives_are_not() -> (
    None
):
    reason = refusal(P2PBandwidth(), joins_messages=True, pair="0-1", window=2)
    assert reason is not None and "sends the messages of p2p_bandwidth in the wait" in reason
    assert refusal(P2PBandwidth(), pair="0-1", window=2) is None
    assert refusal(AllReduce(), joins_messages=True) is None


@pytest.mark.parametrize("timed", TIMED)
def test_the_payload_is_right_however_a_sample_ends(timed: Timed) -> None:
    for benchmark, axes in ((AllReduce(), {}), (P2PBandwidth(), {"pair": "0-1", "window": 2})):
        plain = case_of(benchmark, 2, 12, **axes)
        case = replace(plain, overlap="sleep", timed=timed)
        trial = BenchmarkTrial(Overlapped(benchmark, timed, compute_amount=500), case, 2)
        trial.run(2)
        assert set(trial.wrong().values()) <= {0}


def test_a_sample_that_ends_before_the_operation_is_alone_between_its_stamps() -> None:
    alone = {timed: Overlapped(P2PBandwidth(), timed).self_synchronising for timed in TIMED}
    assert alone == {timed: timed != "compute_beside" for timed in TIMED}


def test_the_row_of_a_node_computes_as_much_as_all_nodes() -> None:
    on_nodes = Overlapped(OnEachNode(AllReduce(), 2), "together", compute_amount=500)
    assert on_nodes.of_row() == Overlapped(AllReduce(), "together", compute_amount=500)
    assert Overlapped(AllReduce(), "together").of_row() is None


@pytest.mark.parametrize(("text", "expected"), [("100us", 100_000), ("2ms", 2_000_000)])
def test_the_time_of_a_computation_is_read_with_its_unit(text: str, expected: int) -> None:
    assert compute_time_ns(text) == expected


@pytest.mark.parametrize("text", ["100", "0us", "1s", "-1ms", "1.5ms", ""])
def test_another_time_of_a_computation_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time; write it like 100us or 2ms"):
        compute_time_ns(text)
