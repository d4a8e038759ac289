"""sync=clock: the repetitions of a case begin at agreed instants of a global clock, after ReproMPI
(Hunold and Carpen-Amarie), which calls the time between two starts a window.

Rank 0 sets the start of a block and the time from one repetition to the next; each rank waits for
the starts on its own clock. A repetition that any rank begins later is late, and counts in no
statistic; the others are measured from the agreed instant to the end on the last rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from commbench.core.protocols import Control

from .collector import SampleCollector
from .global_clock import GlobalClock
from .samples import LATE, NS_PER_S, Counts
from .time_limits import BLOCK_S

LATE_NS = 1_000  # an undisturbed wait ends within one read of the clock, 0.2 us at most
LEAD_NS = 5_000_000
MAX_LEAD_NS = 80_000_000  # from the decision to the start of a block: all ranks must receive it
MARGIN_NS = 10_000  # between two repetitions
LENGTH_FACTOR = 1.5  # times what a repetition takes
LENGTH_QUANTILE = 0.9  # of what repetitions take: a few slow ones may delay the next
# of repetitions in a block, beyond which the time between two starts is too short
MAX_LATE_SHARE = 0.25
MAX_GROWTH = 64
MAX_LENGTH_NS = 50_000_000  # between two starts; a rank that is later than that has lost its core
HOPELESS_BLOCKS = 20  # in a row without one repetition in time


class AgreedStarts:
    """See above; all ranks of a case make one."""

    def __init__(
        self,
        clock: GlobalClock,
        control: Control,
        ranks: tuple[int, ...],
        collector: SampleCollector,
    ) -> None:
        self._clock = clock
        self._control = control
        self._ranks = ranks
        self._collector = collector
        self._length_ns = 0
        self._longest_ns = 0
        self._lead_ns = LEAD_NS
        # of the last block, on rank 0's clock
        self._starts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._counted_lines: object = None  # the lines that are in the counters already
        self._late_blocks = 0  # in a row, without a repetition in time
        self.late = 0
        self.error_ns = 0.0

    def starts(self, n: int, measured: bool, deadline_s: float) -> NDArray[np.int64]:
        """When the n repetitions of the next block begin, on this rank's clock [n]; all ranks call
        it.

        Before the measured phase only the block has a start: its repetitions show how far
        apart starts must be.
        """
        length_ns = self._length_ns if measured else 0
        due, first, length_ns = self._control.decide(
            [self._clock.due, self._clock.now() + self._lead_ns, length_ns], deadline_s, "clock"
        )
        if due:
            self._clock.refresh(deadline_s)
            first = self._control.decide(self._clock.now() + self._lead_ns, deadline_s, "clock")
        self._starts = first + length_ns * np.arange(n, dtype=np.int64)
        return self._clock.lines[self._control.rank].own(self._starts)

    def add_parts(self, phase: str, parts: Sequence[NDArray[np.int64]]) -> None:
        """Add the stamps of all processes."""
        self.add(phase, np.concatenate(parts)[list(self._ranks)])

    def add(self, phase: str, stamps: NDArray[np.int64]) -> None:
        """Add stamps [ranks, n, 2] of the last block, in ns, to the collector; late ones as a phase
        of their own."""
        if phase == "measure":
            self._add_measured(stamps)
        else:
            self._collector.add(phase, stamps)
            self._set_length(stamps)

    def _set_length(self, stamps: NDArray[np.int64]) -> None:
        """How far apart starts must be, from repetitions without starts of their own."""
        elapsed = (stamps[:, :, 1] - stamps[:, :, 0]).max(axis=0)
        # includes untimed steps before a repetition
        between = np.diff(stamps[:, :, 0], axis=1).max(axis=0)
        usual_ns = max(
            float(np.quantile(times, LENGTH_QUANTILE)) for times in (elapsed, between) if len(times)
        )
        error_ns = self._clock.error_ns(int(self._starts[-1]))
        self._length_ns = round(LENGTH_FACTOR * usual_ns + MARGIN_NS + 2 * error_ns)
        self._longest_ns = max(self._length_ns, min(MAX_GROWTH * self._length_ns, MAX_LENGTH_NS))

    def _add_measured(self, stamps: NDArray[np.int64]) -> None:
        agreed = np.stack([self._clock.lines[rank].own(self._starts) for rank in self._ranks])
        late = np.asarray((stamps[:, :, 0] - agreed > LATE_NS).any(axis=0))
        # on each rank's own clock: an error of the clocks shifts when a rank begins, not how long
        # it takes
        times = (stamps[:, :, 1] - agreed).max(axis=0) / NS_PER_S
        for phase, chosen in (("measure", ~late), (LATE, late)):
            if chosen.any():
                self._collector.add(phase, stamps[:, chosen], times[chosen])
        self.late += int(late.sum())
        self._late_blocks = self._late_blocks + 1 if late.all() else 0
        end_ns = int(self._starts[-1]) + self._length_ns
        self.error_ns = max(self.error_ns, self._clock.error_ns(end_ns))
        # the following ones may be late because of the first
        if late[0] and self._lead_ns < MAX_LEAD_NS:
            self._lead_ns *= 2
        elif late.mean() > MAX_LATE_SHARE:
            self._length_ns = min(2 * self._length_ns, self._longest_ns)
        self._count_starts()
        self._count_lines()

    def most(self, n: int) -> int:
        """At most n repetitions, and no more than a block has time for."""
        return max(1, min(n, round(BLOCK_S * 1e9) // max(1, self._length_ns)))

    @property
    def problem(self) -> str | None:
        """Why the case can't be measured with sync=clock; None while it can."""
        if self._late_blocks < HOPELESS_BLOCKS:
            return None
        length = f"{self._length_ns * 1e-9:.3g} s from one to the next"
        return (
            f"no repetition of {self._late_blocks} blocks began in time, at last with {length}; use"
            " sync=barrier"
        )

    def _count_starts(self) -> None:
        """Record the time between the starts of the last block."""
        length_s = float(np.diff(self._starts[:2]).sum()) * 1e-9
        self._collector.count(Counts(0, int(self._starts[0]), {"clock.start_interval_s": length_s}))

    def _count_lines(self) -> None:
        """Record new lines of the nodes' clocks, each for the first rank of its node, with t_ns on
        the node's own clock."""
        if self._counted_lines is self._clock.lines:
            return
        self._counted_lines = self._clock.lines
        for rank in self._clock.leaders[1:]:
            line = self._clock.lines[rank]
            values = {
                "clock.offset_s": line.offset_ns * 1e-9,
                "clock.slope": line.slope,
                "clock.error_s": line.error_ns * 1e-9,
            }
            self._collector.count(Counts(rank, line.at_ns, values))
