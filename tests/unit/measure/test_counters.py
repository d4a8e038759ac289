"""When the counters of a rank are read."""

from __future__ import annotations

import threading
import time
from math import nan
from typing import cast

import pytest
from composed import FACTS, settings_of
from processes import until

from commbench.backends.simulated.backend import Simulated, SimulatedCommunicator
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


class Sender(SimulatedCommunicator):
    """Has a connection, and sends a segment again before each reading."""

    resent = 7.0

    def counters(self) -> dict[str, float]:
        self.resent += 1
        values = {"cwnd": 10.0, "mss": 1000.0, "rtt_s": 0.002, "retransmits": self.resent}
        return {f"tcp.peer1.stream0.{name}": value for name, value in values.items()}


def test_what_the_sender_of_a_stream_does_is_read_at_each_interval_of_a_soak() -> None:
    setup = setup_of(Sender, "timing=soak", "benchmark=stream")
    sender = cast(Sender, setup.communicator)
    reader = CounterReader(setup)
    begun_s = time.monotonic()
    reader.begin_intervals(0.05)
    before = sender.resent
    until(lambda: sender.resent >= before + 5)
    reader.close()
    seen = [values for _, values in reader.take() if "sender.rtt_s" in values]
    assert 5 <= len(seen) <= 1 + (time.monotonic() - begun_s) / 0.05
    assert seen[0]["sender.cwnd_bytes"] == 10_000 and seen[0]["sender.rtt_s"] == 0.002
    resent = [values["sender.retransmits"] for values in seen]
    assert resent == [resent[0] + number for number in range(len(seen))]
    assert reader.take() == [], "no reading follows"


def test_the_wait_for_a_core_is_a_share_of_what_was_measured_where_the_kernel_tells_it() -> None:
    reader = CounterReader(setup_of(SimulatedCommunicator))
    for waited_s, measured_s in ((0.5, 2.0), (nan, 2.0), (0.0, 0.0)):
        reader.read_core_wait(waited_s, measured_s)
    assert [values for _, values in reader.take()] == [{CORE_WAIT: 0.25}]


def test_a_soak_of_other_operations_has_no_thread_beside_it() -> None:
    reader = CounterReader(setup_of(Sender, "timing=soak"))
    reader.begin_intervals(0.001)
    assert "commbench-sender" not in {thread.name for thread in threading.enumerate()}
    reader.close()


def test_the_counts_of_a_soak_begin_with_its_connections() -> None:
    setup = setup_of(Sender, "timing=soak")
    reader = CounterReader(setup)
    reader.after_block("warmup")
    cast(Sender, setup.communicator).resent = -1.0  # of fresh ones: 0 in the next reading
    reader.begin_intervals(100.0)
    reader.close()
    cast(Sender, setup.communicator).resent = 4.0
    reader.after_block("measure")
    assert reader.take()[2][1]["measured.retransmits"] == 5.0


def test_without_tcp_nothing_more_is_read() -> None:
    reader = CounterReader(setup_of(SimulatedCommunicator, "timing=soak"))
    reader.begin_intervals(0.001)
    time.sleep(0.01)
    reader.close()
    assert not any("sender.rtt_s" in values for _, values in reader.take())
