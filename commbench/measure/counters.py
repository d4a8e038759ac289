"""The counters of a rank during a visit: of its backend, and of its host's network cards and
scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from commbench.core.layout import Layout
from commbench.engines.device import HOST_BOUND
from commbench.engines.lowered import now_ns
from commbench.hardware.host import interference_counters
from commbench.hardware.network import byte_counters

from .samples import CORE_WAIT, MEASURED_HOST_BOUND, RETRANSMITS
from .visit_setup import VisitSetup

# some drivers take tens of ms for a GPU's counters, a fifth of a short block
SLOW_COUNTERS_NS = 1_000_000

CounterReading = tuple[int, dict[str, float]]  # on this rank's clock, in ns; values by name


class ReaderBeside(Protocol):
    """Reads more, in a thread of its own."""

    def take(self) -> list[CounterReading]:
        """The readings since the last call."""

    def close(self) -> None:
        """No reading follows."""


class CounterReader:
    """Keeps the readings of this rank's counters until they are gathered.

    They are read after each block; slow ones only after the first call, after the warm-up and at
    the end.
    """

    def __init__(self, setup: VisitSetup) -> None:
        self._communicator = setup.communicator
        self.beside: ReaderBeside | None = None
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

    def restart(self) -> None:
        """What is measured begins over connections that count from 0."""
        self._read("warmup")

    def close(self) -> None:
        """No reading follows."""
        if self.beside is not None:
            self.beside.close()

    def take(self) -> list[CounterReading]:
        """The readings since the last call."""
        taken = self._readings + (self.beside.take() if self.beside is not None else [])
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
