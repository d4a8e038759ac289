"""Pairs that run at once take the same times, and move the same bytes, as if each of their ranks
had a program of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from benchmark_trials import case_of

from commbench.backends.buffers.memory import CheckedBuffers, CheckedPayload
from commbench.backends.buffers.pair_buffers import PairBuffers
from commbench.backends.simulated.backend import Simulated, SimulatedCommunicator
from commbench.backends.simulated.virtual import Model
from commbench.benchmarks.p2p_bandwidth import P2PBandwidth
from commbench.benchmarks.p2p_bibandwidth import P2PBibandwidth
from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.benchmarks.p2p_multi_pair import P2PMultiPair
from commbench.benchmarks.point_to_point import PointToPoint
from commbench.core.case import Planned
from commbench.runtime.control import hosted_world

SIZE = 8
ROUND = "0-5 2-2 6-1 4-3"  # rank 7 is idle
MODELS = {
    "plain": Model(),
    "noise": Model(noise=0.1, rho=0.5),
    "slow_link": Model(slow_pair="6-1", slow_factor=3.0, other_node_factor=2.0),
    "slow_rank": Model(slow_rank=5, slow_factor=1.5),
    "straggler": Model(straggler_rank=1, straggler_every=2, straggler_s=1e-3, noise=0.05),
    "corrupt": Model(corrupt_rank=1, corrupt_after=1),
}
BENCHMARKS = {
    each.name: each() for each in (P2PLatency, P2PBandwidth, P2PBibandwidth, P2PMultiPair)
}


def planned(benchmark: PointToPoint, count: int, pool: int) -> Planned:
    window = 3 if "window" in benchmark.axes else None
    case = case_of(benchmark, SIZE, count, pair=ROUND, schedule="rounds", window=window)
    case = replace(case, layout="2x4")
    return Planned(0, case, benchmark, tuple(range(SIZE)), pool, 0, None)


def blocks(payload: CheckedPayload, around: Planned) -> tuple[list[np.ndarray], list[int]]:
    """Stamps of some blocks, and the wrong elements after each."""
    programs = {rank: around.program(rank) for rank in payload.ranks}
    payload.allocate(programs)
    runner = payload.prepare(programs, around.case.mode)
    stamps = []
    wrong = []
    for n in (1, 3, 4):
        payload.refill()
        stamps.append(runner(n))
        wrong.append(payload.count_wrong(copies=n))
    return stamps, wrong


def both_ways(model: Model, around: Planned) -> list[tuple[list[np.ndarray], list[int]]]:
    communicator: SimulatedCommunicator = Simulated(model).open(*hosted_world(2, 4))
    kinds: list[Callable[..., CheckedPayload]] = [CheckedBuffers, PairBuffers]
    return [blocks(kind(around, communicator, 16), around) for kind in kinds]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_pairs_at_once_have_the_times_and_the_payload_of_their_own_programs(name: str) -> None:
    for model_name, model in MODELS.items():
        for count, pool in ((2, 1), (3000, 3)):
            one_by_one, together = both_ways(model, planned(BENCHMARKS[name], count, pool))
            for own, shared in zip(one_by_one[0], together[0], strict=True):
                assert np.array_equal(own, shared), f"{model_name}, {count} elements"
            assert one_by_one[1] == together[1], f"{model_name}, {count} elements"
            assert any(together[1]) == (model_name == "corrupt")


def test_a_message_that_went_to_another_rank_is_noticed() -> None:
    around = planned(BENCHMARKS["p2p_latency"], 5, 1)
    communicator = Simulated().open(*hosted_world(2, 4))
    payload = PairBuffers(around, communicator, 16)
    programs = {rank: around.program(rank) for rank in payload.ranks}
    payload.allocate(programs)
    runner = payload.prepare(programs, around.case.mode)
    payload.fill()
    assert payload.count_wrong(copies=1) > 0, "nothing has been sent"
    runner(1)
    assert payload.count_wrong(copies=1) == 0
    _, (first, second) = payload.of_kinds[1]
    received = first["recv"].words(around.program(0).steps[1].data, copies=1)
    received[[0, 1]] = received[[1, 0]]
    assert payload.count_wrong(copies=1) > 5
    assert second.keys() == {"send", "recv"}
