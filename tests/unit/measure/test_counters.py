"""When the counters of a rank are read."""

from __future__ import annotations

from typing import cast

import pytest
from composed import FACTS, settings_of

from commbench.backends.simulated.backend import Simulated, SimulatedCommunicator
from commbench.measure.case import CaseVisit
from commbench.measure.plan import plan
from commbench.measure.samples import Samples
from commbench.measure.visit_setup import VisitSetup
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress


@pytest.mark.parametrize("slow", [False, True])
def test_counters_that_are_slow_are_read_at_both_ends_of_a_case_and_of_its_warm_up_only(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    class Counting(SimulatedCommunicator):
        def counters(self) -> dict[str, float]:
            return {"bytes": 1.0}

    monkeypatch.setattr("commbench.measure.counters.SLOW_COUNTERS_NS", -1 if slow else 10**12)
    words = (
        "timing=fixed",
        "timing.repetitions=9",
        "benchmark=all_reduce",
        "layout=1x2",
        "sizes=[8]",
    )
    settings = settings_of("backend=simulated", *words)
    world, control = hosted_world(1, 2)
    (planned,) = plan(settings, world, FACTS)
    communicator = Counting(cast(Simulated, settings.backend), (0, 0))
    setup = VisitSetup(planned, communicator, control, settings, {}, lambda _: None, Progress())
    outcome = CaseVisit(setup).measure()
    assert isinstance(outcome, Samples)
    seen = sum(len(counts.values) for counts in outcome.counts)
    assert seen == 3 if slow else seen > 3
