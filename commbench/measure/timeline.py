"""What a case has given so far, in bounded memory: raw stamps, then one rank's a repetition, then intervals only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .headline import NS_PER_S, Series, deciding_rows
from .samples import Block, Counts

RAW_STAMPS = (
    4_000_000  # of single ranks: 64 MB; beyond it the rank that decides a repetition, and quantiles of the rest
)
KEPT_REPETITIONS = 1_000_000  # beyond it every second, then every fourth ... time is kept for the statistics
QUANTILES = {"rank.min_s": 0.0, "rank.median_s": 0.5, "rank.p90_s": 0.9, "rank.p99_s": 0.99, "rank.max_s": 1.0}


class Timeline:
    """Rank 0's. `ranks` and `senders` as in Samples; with `interval_s` the measured phase is also kept by interval."""

    def __init__(
        self, headline: str, ranks: Sequence[int], senders: Sequence[int], interval_s: float | None = None
    ) -> None:
        self._headline, self._ranks, self._senders = headline, np.asarray(ranks), tuple(senders)
        self._blocks: list[Block] = []
        self._counts: list[Counts] = []
        self._series: dict[str, _Thinned] = {}
        self._intervals = None if interval_s is None else _Intervals(int(ranks[0]) if ranks else 0, interval_s)
        self._next, self._raw, self._condensed = 0, 0, 0
        self.operations = 1  # of a sample, to give interval times per operation

    def add(self, phase: str, stamps: NDArray[np.int64], times: Series | None = None) -> None:
        """Stamps [ranks, n, 2] of consecutive repetitions, in ns; their seconds, where they are not the headline's."""
        rows = deciding_rows(stamps, self._headline, self._senders)
        decided = stamps[rows, np.arange(stamps.shape[1])]
        times = (decided[:, 1] - decided[:, 0]) / NS_PER_S if times is None else times
        series = self._series.setdefault(phase, _Thinned())
        self._keep(phase, series.total, stamps, rows, decided)
        series.append(times)
        if self._intervals is not None and phase == "measure":
            self._counts += self._intervals.add(stamps[0, :, 0], times, self.operations)

    def times(self, phase: str) -> Series:
        """Seconds of each sample by the headline rule; of every 2^k-th where there were too many."""
        return self._series[phase].values if phase in self._series else np.zeros(0)

    def repetitions(self, phase: str) -> int:
        return self._series[phase].total if phase in self._series else 0

    @property
    def complete(self) -> bool:
        """All stamps of all ranks are kept."""
        return self._condensed == 0 and self._next == len(self._blocks)

    def count(self, counts: Counts) -> None:
        self._counts.append(counts)

    def blocks(self) -> tuple[Block, ...]:
        return tuple(self._blocks)

    def counts(self) -> tuple[Counts, ...]:
        return tuple(self._counts)

    def forget(self) -> None:
        """What was written is on disk; the statistics and the open interval stay."""
        self._blocks.clear()
        self._counts.clear()

    def close(self) -> None:
        """The last interval ends with the last repetition."""
        if self._intervals is not None:
            self._counts += self._intervals.close()

    def _keep(
        self, phase: str, first: int, stamps: NDArray[np.int64], rows: NDArray[np.intp], decided: NDArray[np.int64]
    ) -> None:
        ranks, n, _ = stamps.shape
        index, self._next = self._next, self._next + 1
        if self._raw + ranks * n <= RAW_STAMPS:
            self._raw += ranks * n
            self._blocks.append(Block(phase, index, stamps, first))
            return
        self._condensed += n
        self._counts += _rank_quantiles(self._ranks, stamps, self.operations)
        if self._condensed <= KEPT_REPETITIONS:
            self._blocks.append(Block(phase, index, decided[np.newaxis], first, self._ranks[rows]))


class _Thinned:
    """A series of bounded length: evenly spaced repetitions, so quantiles stay what they are."""

    def __init__(self) -> None:
        self.values: Series = np.zeros(0)
        self.total, self._stride = 0, 1

    def append(self, values: Series) -> None:
        skip = -self.total % self._stride
        self.values = np.concatenate([self.values, values[skip :: self._stride]])
        self.total += len(values)
        while len(self.values) > KEPT_REPETITIONS:
            self.values, self._stride = self.values[::2].copy(), 2 * self._stride


class _Intervals:
    """Aggregates of the repetitions that began in the same interval of one rank's clock."""

    def __init__(self, rank: int, interval_s: float) -> None:
        self._rank, self._interval_ns = rank, round(interval_s * NS_PER_S)
        self._open, self._times, self._operations = -1, np.zeros(0), 1

    def add(self, starts: NDArray[np.int64], times: Series, operations: int) -> list[Counts]:
        """Counts of the intervals that ended; the last one stays open."""
        self._operations = operations
        index = starts // self._interval_ns
        closed: list[Counts] = []
        edges = [0, *(np.flatnonzero(np.diff(index)) + 1).tolist(), len(index)]
        for begin, end in pairwise(edges):
            if index[begin] != self._open:
                closed += self.close()
                self._open = int(index[begin])
            self._times = np.concatenate([self._times, times[begin:end]])
        return closed

    def close(self) -> list[Counts]:
        if not len(self._times):
            return []
        each = self._times / self._operations
        found = {
            "interval.repetitions": len(each),
            "interval.busy_s": self._times.sum(),  # of the interval: the rest went into barriers and decisions
            "interval.min_s": each.min(),
            "interval.median_s": np.median(each),
            "interval.max_s": each.max(),
        }
        self._times = np.zeros(0)
        when = self._open * self._interval_ns
        return [Counts.of(self._rank, when, {name: float(value) for name, value in found.items()})]


def _rank_quantiles(ranks: NDArray[np.int64], stamps: NDArray[np.int64], operations: int) -> list[Counts]:
    """Of each rank's own times in this block, in seconds per operation."""
    elapsed = (stamps[:, :, 1] - stamps[:, :, 0]) / (NS_PER_S * operations)
    values = np.quantile(elapsed, list(QUANTILES.values()), axis=1)
    when = np.full(len(ranks), int(stamps[0, 0, 0]))
    return [
        Counts(ranks, when, np.full(len(ranks), name, dtype=object), values[row]) for row, name in enumerate(QUANTILES)
    ]
