"""When a rank is busy: intervals of any number, merged as they come."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

Span = tuple[int, int]  # start and end, in ns
MOST_PENDING = 2**16


class SpanUnion:
    """The union of intervals, most of which come in the order of their starts. Its memory grows
    with the union, not with the number of intervals."""

    def __init__(self, most_late: int = MOST_PENDING) -> None:
        self._starts: array[int] = array("q")
        self._ends: array[int] = array("q")
        self._late: list[Span] = []  # they come after one that starts later
        self._least_late = most_late

    def add(self, start_ns: int, end_ns: int) -> None:
        """Times are from 0 to 2^63 - 1; one without length is left out."""
        if start_ns >= end_ns:
            return
        if self._starts and start_ns < self._starts[-1]:
            self._late.append((start_ns, end_ns))
            # each merge goes through all of them
            if len(self._late) >= max(self._least_late, len(self._starts) // 2):
                self._merge()
        else:
            self._append(start_ns, end_ns)

    def spans(self) -> Iterator[Span]:
        """Those of the union, in order; no two of them touch."""
        self._merge()
        return zip(self._starts, self._ends, strict=True)

    def _append(self, start_ns: int, end_ns: int) -> None:
        """Add one that starts no earlier than the last."""
        if self._ends and start_ns <= self._ends[-1]:
            self._ends[-1] = max(self._ends[-1], end_ns)
        else:
            self._starts.append(start_ns)
            self._ends.append(end_ns)

    def _merge(self) -> None:
        if not self._late:
            return
        in_order = zip(self._starts, self._ends, strict=True)
        late = sorted(self._late)
        self._starts = array("q")
        self._ends = array("q")
        self._late = []
        for span in heapq.merge(in_order, late):
            self._append(*span)


class BusyTimes:
    """Intervals in order that do not touch, on a clock that begins `offset_ns` before theirs."""

    def __init__(self, spans: Iterable[Span] = (), offset_ns: int = 0) -> None:
        self._offset_ns = offset_ns
        self._starts: array[int] = array("q")
        self._ends: array[int] = array("q")
        # busy time before each interval, and in all
        self._before: array[int] = array("q", [0])
        for start_ns, end_ns in spans:
            self._starts.append(start_ns)
            self._ends.append(end_ns)
            self._before.append(self._before[-1] + end_ns - start_ns)

    @property
    def total_ns(self) -> int:
        return self._before[-1]

    def within(self, start_ns: int, end_ns: int) -> int:
        """How many ns of this interval are busy; 0 where it has no length."""
        if end_ns <= start_ns:
            return 0
        return self._until(end_ns) - self._until(start_ns)

    def _until(self, time_ns: int) -> int:
        """The busy time before a time."""
        own_ns = time_ns - self._offset_ns
        place = bisect_right(self._starts, own_ns)
        if place == 0:
            return 0
        return self._before[place] - max(0, self._ends[place - 1] - own_ns)


def union_of(spans: Iterable[Span]) -> list[Span]:
    """The union of some intervals, in order."""
    union: list[Span] = []
    for start_ns, end_ns in sorted(spans):
        if union and start_ns <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end_ns))
        else:
            union.append((start_ns, end_ns))
    return union
