"""Repetitions that begin at agreed instants of a global clock (sync=window), and which of them count.

Rank 0 sets the start of a block and the time from one repetition to the next; each rank converts them to its own clock
and waits for them. A repetition that any rank begins later is late, and in no statistic. After ReproMPI (Hunold and
Carpen-Amarie).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from commbench.core.protocols import Control

from .clock_sync import GlobalClock
from .samples import LATE, Counts, Timeline, window_times
from .time_limits import BLOCK_S

LATE_NS = 1_000  # an undisturbed wait ends within one read of the clock, 0.2 us at most
LEAD_NS, MAX_LEAD_NS = 5_000_000, 80_000_000  # from the decision to a block's start: all ranks have to receive it
MARGIN_NS = 10_000  # between two repetitions
LENGTH_FACTOR = 1.5  # times what a repetition takes
LENGTH_QUANTILE = 0.9  # of what repetitions take: a few slow ones may delay the next
MAX_LATE_SHARE = 0.25  # of repetitions in a block, beyond which the window is too short
MAX_GROWTH, MAX_LENGTH_NS = 64, 50_000_000  # of a window; a rank that is late beyond it has lost its core
HOPELESS_BLOCKS = 20  # in a row without one repetition in time


class Window:
    """The window of one case, made by all its ranks. Its length, and the timeline of `ranks`, are those of rank 0."""

    def __init__(self, clock: GlobalClock, control: Control, ranks: tuple[int, ...], timeline: Timeline) -> None:
        self._clock, self._control, self._ranks, self._timeline = clock, control, ranks, timeline
        self._length_ns, self._longest_ns, self._lead_ns = 0, 0, LEAD_NS
        self._starts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # of the last block, on rank 0's clock
        self._counted_lines: object = None  # lines that are in the counts already
        self._late_blocks = 0  # in a row without a repetition in time
        self.late = 0
        self.error_ns = 0.0

    def starts(self, n: int, measured: bool, deadline_s: float) -> NDArray[np.int64]:
        """When the n repetitions of the next block begin, on this rank's clock [n]; all ranks call it.

        Before the measured phase only the block has a start, so that the repetitions show how long a window must be.
        """
        length_ns = self._length_ns if measured else 0
        due, first, length_ns = self._control.decide(
            [self._clock.due, self._clock.now() + self._lead_ns, length_ns], deadline_s, "window"
        )
        if due:
            self._clock.refresh(deadline_s)
            first = self._control.decide(self._clock.now() + self._lead_ns, deadline_s, "window")
        self._starts = first + length_ns * np.arange(n, dtype=np.int64)
        return self._clock.lines[self._control.rank].own(self._starts)

    def add_parts(self, phase: str, parts: Sequence[NDArray[np.int64]]) -> None:
        """The same for the stamps of all processes."""
        self.add(phase, np.concatenate(parts)[list(self._ranks)])

    def add(self, phase: str, stamps: NDArray[np.int64]) -> None:
        """Add stamps [ranks, n, 2] of the last block, in ns, to the timeline; late ones as a phase of their own."""
        if phase != "measure":
            self._timeline.add(phase, stamps)  # of repetitions that followed one another without a wait
            elapsed = (stamps[:, :, 1] - stamps[:, :, 0]).max(axis=0)
            between = np.diff(stamps[:, :, 0], axis=1).max(axis=0)  # with what a program does untimed before each
            usual_ns = max(np.quantile(times, LENGTH_QUANTILE) for times in (elapsed, between) if len(times))
            error_ns = max(self._clock.errors_ns(int(self._starts[-1])))
            self._length_ns = round(LENGTH_FACTOR * float(usual_ns) + MARGIN_NS + 2 * error_ns)
            self._longest_ns = max(self._length_ns, min(MAX_GROWTH * self._length_ns, MAX_LENGTH_NS))
            return
        agreed = np.stack([self._clock.lines[rank].own(self._starts) for rank in self._ranks])
        late = np.asarray((stamps[:, :, 0] - agreed > LATE_NS).any(axis=0))
        times = window_times(stamps, agreed)
        for name, chosen in ((phase, ~late), (LATE, late)):
            if chosen.any():
                self._timeline.add(name, stamps[:, chosen], times[chosen])
        self.late += int(late.sum())
        self._late_blocks = self._late_blocks + 1 if late.all() else 0
        self.error_ns = max(self.error_ns, *self._clock.errors_ns(int(self._starts[-1]) + self._length_ns))
        if late[0] and self._lead_ns < MAX_LEAD_NS:  # the later ones may be late because of the first
            self._lead_ns *= 2
        elif late.mean() > MAX_LATE_SHARE:
            self._length_ns = min(2 * self._length_ns, self._longest_ns)
        for counts in self._counts():
            self._timeline.count(counts)

    def most(self, n: int) -> int:
        """At most n repetitions, as a block has time for."""
        return max(1, min(n, round(BLOCK_S * 1e9) // max(1, self._length_ns)))

    @property
    def problem(self) -> str | None:
        """Why the case can't be measured like this; None while it can."""
        if self._late_blocks < HOPELESS_BLOCKS:
            return None
        length = f"a window of {self._length_ns * 1e-9:.3g} s"
        return f"no repetition of {self._late_blocks} blocks began in time, at last with {length}; use sync=barrier"

    def _counts(self) -> list[Counts]:
        """The window of the last block (t_ns is its first start), and the clocks' lines where they are new.

        A line is that of a node's first rank: clock.offset_s at t_ns on its own clock, clock.slope, clock.error_s.
        """
        length_s = float(np.diff(self._starts[:2]).sum()) * 1e-9
        counts = [Counts(0, int(self._starts[0]), {"window.length_s": length_s})]
        if self._counted_lines is not self._clock.lines:
            self._counted_lines = self._clock.lines
            for rank in self._clock.leaders[1:]:
                line = self._clock.lines[rank]
                values = {"offset_s": line.offset_ns * 1e-9, "slope": line.slope, "error_s": line.error_ns * 1e-9}
                counts.append(Counts(rank, line.at_ns, {f"clock.{name}": value for name, value in values.items()}))
        return counts
