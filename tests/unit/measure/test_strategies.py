"""How many samples lie between two stamps."""

from __future__ import annotations

from dataclasses import replace

from composed import FACTS, settings_of

from commbench.core.case import Planned
from commbench.measure.plan import plan
from commbench.measure.strategies import ByStopRule
from commbench.measure.time_limits import samples_per_stamp
from commbench.measure.visit_setup import VisitSetup
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress


def setup_of(benchmark: str, empty_sample_s: float) -> VisitSetup:
    settings = settings_of("backend=simulated", f"benchmark={benchmark}", "sizes=[8]", "layout=1x2")
    world, control = hosted_world(1, 2)
    (planned,) = plan(settings, world, FACTS)
    communicator = settings.backend.open(world, control)
    empty_s = {planned.case.engine: empty_sample_s}
    return VisitSetup(planned, communicator, control, settings, empty_s, lambda _: None, Progress())


def planned_of_pair() -> Planned:
    return setup_of("p2p_latency", 0.0).planned


def test_the_clock_of_the_engine_decides_how_many_samples_lie_between_two_stamps() -> None:
    """5 % of a sample of 260 ns are 13 ns: an empty sample of 20 ns asks for 2, of 35 ns for 3."""
    block_ks = [
        ByStopRule(setup_of("p2p_latency", empty_s)).samples_per_stamp(260e-9)
        for empty_s in (0, 12e-9, 20e-9, 35e-9, 1)
    ]
    assert block_ks == [1, 1, 2, 3, 64]


def test_ranks_that_wait_for_a_meeting_or_not_for_one_another_have_one_sample_between_stamps() -> (
    None
):
    pair = planned_of_pair()
    assert samples_per_stamp(pair, 1e-9, 400e-9) > 1
    behind = replace(pair, case=replace(pair.case, sync="barrier"))
    assert samples_per_stamp(behind, 1e-9, 400e-9) == 1, "each begins at a meeting of its own"
    reduced = setup_of("all_reduce", 0.0).planned
    alone = replace(reduced, case=replace(reduced.case, sync="none"))
    assert samples_per_stamp(alone, 1e-9, 400e-9) == 1, "ranks that do not wait for one another"


def test_throughput_has_20_samples_between_stamps_and_no_more_than_half_a_second() -> None:
    pair = planned_of_pair()
    batched = replace(pair, case=replace(pair.case, timer="throughput"))
    batches = [samples_per_stamp(batched, sample_s, 0.0) for sample_s in (0, 1e-3, 0.1, 1.0)]
    assert batches == [20, 20, 5, 1]
