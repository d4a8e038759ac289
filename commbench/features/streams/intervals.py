"""The repetitions of a soak by intervals of time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from commbench.measure.samples import NS_PER_S, Counts
from commbench.stats.series import Series


class StreamIntervals:
    """Intervals of the receiver's clock, from the start of the first measured repetition on. One
    that lies in two intervals counts in each by its share, so that an interval tells the bytes that
    arrived in it.

    Between two blocks nothing is measured: `busy_s` is the time of an interval without that.
    """

    def __init__(self, rank: int, interval_s: float) -> None:
        self._rank = rank
        self._interval_ns = round(interval_s * NS_PER_S)
        self._begin_ns: int | None = None
        self._open = 0  # number of the interval that has not ended
        self._so_far = np.zeros(2)  # of the open one: repetitions, busy ns
        self._closed: list[NDArray[np.float64]] = []

    @property
    def table(self) -> NDArray[np.float64]:
        """Of each interval that has ended [n, 3]: its begin in s, repetitions, busy seconds."""
        counted = np.concatenate([np.zeros((0, 2)), *self._closed])
        begins_s = np.arange(len(counted)) * self._interval_ns / NS_PER_S
        return np.column_stack([begins_s, counted])

    def add(self, stamps: NDArray[np.int64]) -> list[Counts]:
        """Add the stamps [n, 2] of a block; the aggregates of the intervals that have ended."""
        if self._begin_ns is None:
            self._begin_ns = int(stamps[0, 0])
        instants = stamps.ravel() - self._begin_ns
        # at each start and end: the repetitions and the time in them until then
        steps = np.stack([np.ones(len(stamps)), stamps[:, 1] - stamps[:, 0]])
        moved = np.repeat(np.cumsum(steps, axis=1), 2, axis=1)
        moved[:, ::2] -= steps
        last = int(instants[-1]) // self._interval_ns
        edges = np.arange(self._open + 1, last + 1) * self._interval_ns
        at_edges = np.array([np.interp(edges, instants, each) for each in moved])
        parts = np.diff(np.column_stack([np.zeros(2), at_edges, moved[:, -1]]), axis=1).T
        parts[0] += self._so_far
        self._so_far = parts[-1]
        counts = self._close(parts[:-1])
        self._open = last
        return counts

    def close(self) -> list[Counts]:
        """End the last interval with the last repetition."""
        left = self._so_far[np.newaxis] if self._so_far[1] > 0 else np.zeros((0, 2))
        self._so_far = np.zeros(2)
        return self._close(left)

    def _close(self, parts: NDArray[np.float64]) -> list[Counts]:
        """The aggregates of intervals [n, 2] from the open one on."""
        parts = parts / [1, NS_PER_S]
        self._closed.append(parts)
        return [
            Counts(
                self._rank,
                (self._begin_ns or 0) + number * self._interval_ns,
                {"interval.repetitions": repetitions, "interval.busy_s": busy_s},
            )
            for number, (repetitions, busy_s) in enumerate(parts.tolist(), self._open)
        ]


class StartIntervals:
    """Aggregates the repetitions that began in the same interval of one rank's clock."""

    def __init__(self, rank: int, interval_s: float) -> None:
        self._rank = rank
        self._interval_ns = round(interval_s * NS_PER_S)
        self._open = -1
        self._times = np.zeros(0)
        self._operations = 1

    def add(self, starts: NDArray[np.int64], times: Series, operations: int) -> list[Counts]:
        """The aggregates of the intervals that have ended; the last one stays open."""
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
        aggregates = {
            "interval.repetitions": len(each),
            # the rest of the interval is barriers and decisions
            "interval.busy_s": self._times.sum(),
            "interval.min_s": each.min(),
            "interval.median_s": np.median(each),
            "interval.max_s": each.max(),
        }
        self._times = np.zeros(0)
        begin_ns = self._open * self._interval_ns
        return [Counts(self._rank, begin_ns, aggregates)]
