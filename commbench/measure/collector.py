"""What rank 0 collects while a visit runs, in bounded memory: stamps, one time per repetition, and
counters.

Stamps are raw: every statistic can be computed again from the blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.stats.series import Series

from .samples import NS_PER_S, Block, Counts, counted_rows, deciding_rows

# of all ranks, 64 MB; beyond it only those of the deciding rank of each repetition
RAW_STAMPS = 4_000_000
# repetitions at the begin of a warm-up whose stamps are kept; short messages make over 100,000
KEPT_WARMUP = 2_000
# times for the statistics; beyond it every second one, then every fourth ...
KEPT_REPETITIONS = 1_000_000


class SampleCollector:
    """What rank 0 keeps about a visit."""

    def __init__(self, planned: Planned) -> None:
        self._ranks = np.asarray(planned.active)
        self._rows = counted_rows(planned)
        self.blocks: list[Block] = []
        self.counts: list[Counts] = []
        self._series: dict[str, _Thinned] = defaultdict(_Thinned)
        self._next = 0
        self._raw = 0
        self._condensed = 0
        self.operations = 1  # per sample

    def add(self, phase: str, stamps: NDArray[np.int64]) -> Series:
        """Stamps [ranks, n, 2] of consecutive repetitions, in ns; returns the seconds of each."""
        rows = deciding_rows(stamps, self._rows)
        decided = stamps[rows, np.arange(stamps.shape[1])]
        times = (decided[:, 1] - decided[:, 0]) / NS_PER_S
        series = self._series[phase]
        self._keep(phase, series.total, stamps, rows, decided)
        series.append(times)
        return times

    def add_parts(self, phase: str, parts: Sequence[NDArray[np.int64]]) -> None:
        """Add the stamps of the active ranks from those of all processes."""
        self.add(phase, np.concatenate(parts)[self._ranks])

    def times(self, phase: str) -> Series:
        """Seconds of each sample by the headline rule, or of every 2^k-th sample if there are too
        many."""
        return self._series[phase].values

    def repetitions(self, phase: str) -> int:
        return self._series[phase].total

    @property
    def complete(self) -> bool:
        """Whether all stamps of all ranks are kept."""
        return self._condensed == 0 and self._next == len(self.blocks)

    def count(self, counts: Counts) -> None:
        self.counts.append(counts)

    def forget(self) -> None:
        """Drop blocks and counters, which are on disk; times stay."""
        self.blocks.clear()
        self.counts.clear()

    def close(self) -> None:
        """All has been added."""

    def _keep(
        self,
        phase: str,
        first: int,
        stamps: NDArray[np.int64],
        rows: NDArray[np.intp],
        decided: NDArray[np.int64],
    ) -> None:
        ranks, n, _ = stamps.shape
        if phase == "warmup" and first >= KEPT_WARMUP:
            return
        index = self._next
        self._next = self._next + 1
        if self._raw + ranks * n <= RAW_STAMPS:
            self._raw += ranks * n
            self.blocks.append(Block(phase, index, stamps, first))
            return
        self._condensed += n
        if self._condensed <= KEPT_REPETITIONS:
            self.blocks.append(Block(phase, index, decided[np.newaxis], first, self._ranks[rows]))


class _Thinned:
    """A series of bounded length: evenly spaced repetitions, so that quantiles don't change."""

    def __init__(self) -> None:
        self.values: Series = np.zeros(0)
        self.total = 0
        self._stride = 1

    def append(self, values: Series) -> None:
        skip = -self.total % self._stride
        self.values = np.concatenate([self.values, values[skip :: self._stride]])
        self.total += len(values)
        while len(self.values) > KEPT_REPETITIONS:
            self.values = self.values[::2].copy()
            self._stride = 2 * self._stride
