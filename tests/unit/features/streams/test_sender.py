"""When the counters of a stream's sender are read."""

from __future__ import annotations

import threading
import time
from typing import cast

from composed import FACTS, settings_of
from processes import until

from commbench.features.simulated.backend import Simulated, SimulatedCommunicator
from commbench.features.streams.sender import sender_reader
from commbench.features.streams.soak import Soak
from commbench.measure.counters import CounterReader
from commbench.measure.plan import plan
from commbench.measure.samples import Samples
from commbench.measure.visit_setup import VisitSetup
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress


class Sender(SimulatedCommunicator):
    """Has a connection, and sends a segment again before each reading."""

    resent = 7.0

    def counters(self) -> dict[str, float]:
        self.resent += 1
        values = {"cwnd": 10.0, "mss": 1000.0, "rtt_s": 0.002, "retransmits": self.resent}
        return {f"tcp.peer1.stream0.{name}": value for name, value in values.items()}


def setup_of(kind: type[SimulatedCommunicator], *words: str) -> VisitSetup:
    settings = settings_of("backend=simulated", "timing=soak", "layout=1x2", "sizes=[8]", *words)
    world, control = hosted_world(1, 2)
    (planned,) = plan(settings, world, FACTS)
    communicator = kind(cast(Simulated, settings.backend), (0, 0))
    return VisitSetup(planned, communicator, control, settings, {}, lambda _: None, Progress())


def samples(reason: str) -> Samples:
    raise AssertionError("nothing is saved yet")


def test_what_the_sender_of_a_stream_does_is_read_at_each_interval_of_a_soak() -> None:
    setup = setup_of(Sender, "benchmark=stream", "timing.interval_s=0.05")
    sender = cast(Sender, setup.communicator)
    counters = CounterReader(setup)
    begun_s = time.monotonic()
    Soak(setup).begin(samples, counters)
    before = sender.resent
    until(lambda: sender.resent >= before + 5)
    counters.close()
    seen = [values for _, values in counters.take() if "sender.rtt_s" in values]
    assert 5 <= len(seen) <= 1 + (time.monotonic() - begun_s) / 0.05
    assert seen[0]["sender.cwnd_bytes"] == 10_000 and seen[0]["sender.rtt_s"] == 0.002
    resent = [values["sender.retransmits"] for values in seen]
    assert resent == [resent[0] + number for number in range(len(seen))]
    assert counters.take() == [], "no reading follows"


def test_a_soak_of_other_operations_has_no_thread_beside_it() -> None:
    assert sender_reader(setup_of(Sender, "benchmark=p2p_bandwidth")) is None
    assert "commbench-sender" not in {thread.name for thread in threading.enumerate()}


def test_the_counts_of_a_soak_begin_with_its_connections() -> None:
    setup = setup_of(Sender, "benchmark=p2p_bandwidth")
    counters = CounterReader(setup)
    counters.after_block("warmup")
    cast(Sender, setup.communicator).resent = -1.0  # of fresh ones: 0 in the next reading
    Soak(setup).begin(samples, counters)
    cast(Sender, setup.communicator).resent = 4.0
    counters.after_block("measure")
    assert counters.take()[2][1]["measured.retransmits"] == 5.0


def test_without_tcp_nothing_more_is_read() -> None:
    assert sender_reader(setup_of(SimulatedCommunicator, "benchmark=stream")) is None
