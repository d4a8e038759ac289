"""The counters of a rank during a visit: of its backend, and of its host's network cards and
scheduler."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from statistics import mean

from commbench.core.layout import Layout
from commbench.core.protocols import Communicator
from commbench.engines.device import HOST_BOUND
from commbench.engines.lowered import now_ns
from commbench.hardware.host import interference_counters
from commbench.hardware.network import byte_counters

from .samples import CORE_WAIT, MEASURED_HOST_BOUND, RETRANSMITS
from .visit_setup import VisitSetup

# some drivers take tens of ms for a GPU's counters, a fifth of a short block
SLOW_COUNTERS_NS = 1_000_000

CounterReading = tuple[int, dict[str, float]]  # on this rank's clock, in ns; values by name


class CounterReader:
    """Keeps the readings of this rank's counters until they are gathered.

    They are read after each block; slow ones only after the first call, after the warm-up and at
    the end.
    """

    def __init__(self, setup: VisitSetup) -> None:
        self._communicator = setup.communicator
        self._planned = setup.planned
        self._sender: SenderReader | None = None
        self._layout = Layout.parse(setup.planned.case.layout)
        # a simulated world sends nothing over this host's network cards
        self._uses_network = self._layout.nodes > 1 and not setup.planned.case.has_model_clock
        self._rank = setup.control.rank
        self._measured = MeasuredCounters()
        self._readings: list[CounterReading] = []
        self._is_slow: bool | None = None  # unknown before the first reading

    def after_block(self, phase: str) -> None:
        if not self._is_slow:
            self._read(phase)

    def after_phase(self, phase: str) -> None:
        if self._is_slow:
            self._read(phase)

    def read_core_wait(self, waited_s: float, measured_s: float) -> None:
        """Keep the share of the measured time in which this rank was ready but had no core."""
        if measured_s > 0 and not math.isnan(waited_s):
            self._readings.append((now_ns(), {CORE_WAIT: waited_s / measured_s}))

    def read_interference(self) -> None:
        """Read what may have disturbed this rank: the host's counters."""
        first_of_node = self._rank % self._layout.ranks_per_node == 0
        self._readings.append((now_ns(), interference_counters(first_of_node)))

    def begin_intervals(self, interval_s: float) -> None:
        """A soak begins, over connections that count from 0: from now on also read, at each of its
        intervals, what TCP does where this rank sends a stream."""
        self._read("warmup")
        ranks = [self._planned.active[place] for place in self._planned.senders]
        is_stream = self._planned.shape.headline == "receiver"
        if is_stream and self._rank in ranks and sender_values(self._communicator.counters()):
            self._sender = SenderReader(self._communicator, interval_s)

    def close(self) -> None:
        """No reading follows."""
        if self._sender is not None:
            self._sender.close()

    def take(self) -> list[CounterReading]:
        """The readings since the last call."""
        taken = self._readings + (self._sender.take() if self._sender is not None else [])
        self._readings = []
        return taken

    def _read(self, phase: str) -> None:
        begin_ns = now_ns()
        counters = self._communicator.counters()
        if self._uses_network:
            counters = counters | byte_counters()
        counters = counters | self._measured.reading(counters, phase)
        if counters:
            self._readings.append((now_ns(), counters))
        if self._is_slow is None:
            self._is_slow = now_ns() - begin_ns > SLOW_COUNTERS_NS


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


@dataclass
class MeasuredCounters:
    """Counts of one rank since the measured phase began: TCP segments that it sent again, and
    repetitions before which its GPU waited for the host. The underlying counters continue from case
    to case."""

    before: dict[str, float] = field(default_factory=dict)

    def reading(self, counters: Mapping[str, float], phase: str) -> dict[str, float]:
        """The counts as additional counters; empty for a backend without such counters."""
        if phase == "check":
            return {}
        suffixes = {RETRANSMITS: ".retransmits", MEASURED_HOST_BOUND: HOST_BOUND}
        values = {
            name: [value for counter, value in counters.items() if counter.endswith(suffix)]
            for name, suffix in suffixes.items()
        }
        sums = {name: sum(series) for name, series in values.items() if series}
        self.before = self.before if phase == "measure" else sums
        return {name: value - self.before.get(name, 0.0) for name, value in sums.items()}
