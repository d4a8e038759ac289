"""What TCP does at each interval of a soak, where a rank sends a stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue
from statistics import mean

from commbench.core.protocols import Communicator
from commbench.engines.lowered import now_ns
from commbench.measure.counters import CounterReading
from commbench.measure.visit_setup import VisitSetup


def sender_reader(setup: VisitSetup) -> SenderReader | None:
    """None on ranks that send no stream, and without TCP."""
    planned = setup.planned
    senders = [planned.active[place] for place in planned.senders]
    sends = planned.shape.is_stream and setup.control.rank in senders
    if not sends or not sender_values(setup.communicator.counters()):
        return None
    return SenderReader(setup.communicator, setup.settings.timing.interval_s)


def sender_values(counters: Mapping[str, float]) -> dict[str, float]:
    """The state of all connections together: segments sent again since they were made, bytes that
    may be on their way, the mean round trip; empty without TCP."""
    names = [name.removesuffix(".cwnd") for name in counters if name.endswith(".cwnd")]
    if not names:
        return {}
    return {
        "sender.retransmits": sum(counters[f"{name}.retransmits"] for name in names),
        "sender.cwnd_bytes": sum(
            counters[f"{name}.cwnd"] * counters[f"{name}.mss"] for name in names
        ),
        "sender.rtt_s": mean(counters[f"{name}.rtt_s"] for name in names),
    }


class SenderReader:
    """Reads `sender_values` at the begin of each interval, in a thread; the first at once."""

    def __init__(self, communicator: Communicator, interval_s: float) -> None:
        self._communicator = communicator
        self._interval_s = interval_s
        self._readings: SimpleQueue[CounterReading] = SimpleQueue()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, name="commbench-sender", daemon=True)
        self._thread.start()

    def take(self) -> list[CounterReading]:
        return [self._readings.get() for _ in range(self._readings.qsize())]

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _read(self) -> None:
        due_s = time.monotonic()
        while not self._end.wait(max(0.0, due_s - time.monotonic())):
            self._readings.put((now_ns(), sender_values(self._communicator.counters())))
            due_s += self._interval_s
