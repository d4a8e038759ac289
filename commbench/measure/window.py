"""Repetitions that begin at agreed instants of a global clock (sync=window), and which of them count.

Rank 0 names the start of a block and the time from one repetition to the next; each rank waits for its own image of
them. A repetition that any rank begins later is late, and in no statistic. After ReproMPI (Hunold and Carpen-Amarie).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from commbench.core.protocols import Control

from .clock_sync import GlobalClock
from .deadlines import BLOCK_S
from .headline import Series, window_times
from .samples import LATE, Counts
from .timeline import Timeline

LATE_NS = 1_000  # a wait that was not disturbed ends within one read of the clock, 0.2 us at most
LEAD_NS, MOST_LEAD_NS = 5_000_000, 80_000_000  # from the decision to a block's start: all have to read it and to meet
MARGIN_NS = 10_000  # between two repetitions
SPARE = 1.5  # times what a repetition takes
USUAL = 0.9  # the quantile of that: a few slow ones may spoil the next
MANY = 0.25  # share of late repetitions from which on the window is too short
GROWTH, LONGEST_NS = 64, 50_000_000  # of a window; what is late beyond it has lost its core
HOPELESS_BLOCKS = 20  # without one repetition in time


class Window:
    """Of one case; all its ranks make one. What it learns, and the timeline of `ranks`, are rank 0's."""

    def __init__(self, clock: GlobalClock, control: Control, ranks: tuple[int, ...], timeline: Timeline) -> None:
        self._clock, self._control, self._ranks, self._timeline = clock, control, ranks, timeline
        self._length_ns, self._longest_ns, self._lead_ns = 0, 0, LEAD_NS
        self._starts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # of the last block, on rank 0's clock
        self._told: object = None  # lines that are in the counts already
        self._lost = 0  # blocks in a row without a repetition in time
        self.late = 0
        self.error_ns = 0.0

    def starts(self, n: int, measured: bool, deadline_s: float) -> NDArray[np.int64]:
        """When the n repetitions of the next block begin on this rank's clock [n]; all ranks call it.

        Those before the measured ones only begin together: how they follow one another tells the window's length.
        """
        length_ns = self._length_ns if measured else 0
        due, first, length_ns = self._control.decide([self._clock.due, self._first(), length_ns], deadline_s, "window")
        if due:
            self._clock.refresh(deadline_s)
            first = self._control.decide(self._first(), deadline_s, "window")
        self._starts = first + length_ns * np.arange(n, dtype=np.int64)
        return self._clock.lines[self._control.rank].own(self._starts)

    def add(self, phase: str, stamps: NDArray[np.int64]) -> None:
        """Stamps [ranks, n, 2] of the last block, in ns, to the timeline; late ones apart."""
        if phase != "measure":
            self._timeline.add(phase, stamps)
            self._learn(stamps)
            return
        times, late = self._judge(stamps)
        for name, chosen in ((phase, ~late), (LATE, late)):
            if chosen.any():
                self._timeline.add(name, stamps[:, chosen], times[chosen])
        for counts in self._counts():
            self._timeline.count(counts)

    def _learn(self, stamps: NDArray[np.int64]) -> None:
        """Take the length from stamps [ranks, n, 2] of repetitions that followed one another at once."""
        took = (stamps[:, :, 1] - stamps[:, :, 0]).max(axis=0)
        between = np.diff(stamps[:, :, 0], axis=1).max(axis=0)  # with what a program does untimed before each
        usual = max(np.quantile(one, USUAL) for one in (took, between) if len(one))
        error_ns = max(self._clock.errors_ns(int(self._starts[-1])))
        self._length_ns = round(SPARE * float(usual) + MARGIN_NS + 2 * error_ns)
        self._longest_ns = max(self._length_ns, min(GROWTH * self._length_ns, LONGEST_NS))

    def _judge(self, stamps: NDArray[np.int64]) -> tuple[Series, NDArray[np.bool_]]:
        """Seconds of each repetition of a measured block, and which of them were late [n]."""
        agreed = np.stack([self._clock.lines[rank].own(self._starts) for rank in self._ranks])
        late = np.asarray((stamps[:, :, 0] - agreed > LATE_NS).any(axis=0), dtype=np.bool_)
        self.late += int(late.sum())
        self._lost = self._lost + 1 if late.all() else 0
        self.error_ns = max(self.error_ns, *self._clock.errors_ns(int(self._starts[-1]) + self._length_ns))
        if late[0] and self._lead_ns < MOST_LEAD_NS:  # the others may be late because of it
            self._lead_ns *= 2
        elif late.mean() > MANY:
            self._length_ns = min(2 * self._length_ns, self._longest_ns)
        return window_times(stamps, agreed), late

    def most(self, n: int) -> int:
        """As many of n repetitions as a block has time for."""
        return max(1, min(n, round(BLOCK_S * 1e9) // max(1, self._length_ns)))

    @property
    def problem(self) -> str | None:
        """Why going on is useless, if it is."""
        if self._lost < HOPELESS_BLOCKS:
            return None
        length = f"a window of {self._length_ns * 1e-9:.3g} s"
        return f"no repetition of {self._lost} blocks began in time, at last with {length}; use sync=barrier"

    def _counts(self) -> list[Counts]:
        """What the last block's numbers rest on: its first start (t_ns), its length, and the lines where they are new.

        A line is that of a node's first rank: clock.offset_s at t_ns on its own clock, clock.slope, clock.error_s.
        """
        length_s = float(np.diff(self._starts[:2]).sum()) * 1e-9
        found = [Counts.of(0, int(self._starts[0]), {"window.length_s": length_s})]
        if self._told is not self._clock.lines:
            self._told = self._clock.lines
            for rank in self._clock.leaders[1:]:
                line = self._clock.lines[rank]
                values = {"offset_s": line.offset_ns * 1e-9, "slope": line.slope, "error_s": line.error_ns * 1e-9}
                named = {f"clock.{name}": value for name, value in values.items()}
                found.append(Counts.of(rank, line.at_ns, named))
        return found

    def _first(self) -> int:
        return self._clock.now() + self._lead_ns
