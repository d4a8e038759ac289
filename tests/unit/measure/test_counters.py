"""When the counters of a rank are read."""

from __future__ import annotations

from math import nan
from typing import cast

import pytest
from composed import FACTS, settings_of

from commbench.features.simulated.backend import Simulated, SimulatedCommunicator
from commbench.measure.case import CaseVisit
from commbench.measure.counters import CounterReader
from commbench.measure.plan import plan
from commbench.measure.samples import CORE_WAIT, Samples
from commbench.measure.visit_setup import VisitSetup
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress


def setup_of(kind: type[SimulatedCommunicator], *words: str) -> VisitSetup:
    settings = settings_of(
        "backend=simulated", "benchmark=p2p_bandwidth", "layout=1x2", "sizes=[8]", *words
    )
    world, control = hosted_world(1, 2)
    (planned,) = plan(settings, world, FACTS)
    communicator = kind(cast(Simulated, settings.backend), (0, 0))
    return VisitSetup(planned, communicator, control, settings, {}, lambda _: None, Progress())


@pytest.mark.parametrize("slow", [False, True])
def test_counters_that_are_slow_are_read_at_both_ends_of_a_case_and_of_its_warm_up_only(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    class Counting(SimulatedCommunicator):
        def counters(self) -> dict[str, float]:
            return {"bytes": 1.0}

    monkeypatch.setattr("commbench.measure.counters.SLOW_COUNTERS_NS", -1 if slow else 10**12)
    setup = setup_of(Counting, "timing=fixed", "timing.repetitions=9")
    outcome = CaseVisit(setup).measure()
    assert isinstance(outcome, Samples)
    seen = sum(len(counts.values) for counts in outcome.counts)
    assert seen == 3 if slow else seen > 3


def test_the_wait_for_a_core_is_a_share_of_what_was_measured_where_the_kernel_tells_it() -> None:
    reader = CounterReader(setup_of(SimulatedCommunicator))
    for waited_s, measured_s in ((0.5, 2.0), (nan, 2.0), (0.0, 0.0)):
        reader.read_core_wait(waited_s, measured_s)
    assert [values for _, values in reader.take()] == [{CORE_WAIT: 0.25}]
