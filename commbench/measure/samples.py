"""The results of a visit: stamps of all ranks and one time per repetition, both in bounded memory.

Stamps are raw: every statistic can be computed again from the blocks. A soak measures all the time:
a thread adds its stamps to the timeline and saves them while the next block runs.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.engines.device import HOST_BOUND

from .statistics import Series

PHASES = ("connect", "warmup", "measure")
# phase of measured repetitions that a rank began after the agreed instant; in no statistic
LATE = "late"
NS_PER_S = 1e9
HEADLINES = ("initiator", "max_over_ranks", "max_over_senders")
# of all ranks, 64 MB; beyond it only the deciding rank of each repetition, and quantiles
RAW_STAMPS = 4_000_000
# repetitions at the begin of a warm-up whose stamps are kept; short messages make over 100,000
KEPT_WARMUP = 2_000
# times for the statistics; beyond it every second one, then every fourth ...
KEPT_REPETITIONS = 1_000_000
RETRANSMITS = "measured.retransmits"
MEASURED_HOST_BOUND = "measured.host_bound_repetitions"  # see MeasuredCounters
# counters of a rank's own times in a block of which only the deciding rank's stamps are kept
QUANTILES = {
    "rank.min_s": 0.0,
    "rank.median_s": 0.5,
    "rank.p90_s": 0.9,
    "rank.p99_s": 0.99,
    "rank.max_s": 1.0,
}
# of a soak
MOST_WAITING = 6  # blocks; beyond it the ranks wait for the thread, which counts as unmeasured
SWITCH_S = 1e-4  # the longest time for which the thread keeps the GIL from the loop that measures


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive repetitions. `stamps` is int64 [ranks, n, 2]: start and end in ns on each rank's
    own clock.

    `first` is the number of its first repetition within the phase. With `decided` [n], only the
    stamps [1, n, 2] of the rank that decided each repetition were kept, and these are the ranks.
    """

    phase: str
    index: int
    stamps: NDArray[np.int64]
    first: int = 0
    decided: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Counts:
    """One reading of a rank's counters; `t_ns` is on its own clock."""

    rank: int
    t_ns: int
    values: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Samples:
    """One visit of a case. `ranks` are the rows of the stamps: the ranks of the layout that took
    part.

    `series` holds the seconds of each sample by the headline rule if the blocks don't: a soak saves
    and drops its blocks, a large world keeps only a part of them, a window counts from the agreed
    instant. `repetitions` is then the number of all samples. `spent_s` is the time in measured
    blocks. `late_repetitions` and `clock_error_s` are for sync=window, `unmeasured_s` for a soak.
    """

    ranks: tuple[int, ...]
    blocks: tuple[Block, ...]
    block_k: int
    stop_reason: str
    wrong_elements: int
    counts: tuple[Counts, ...] = ()
    series: NDArray[np.float64] | None = None
    repetitions: int | None = None
    first_call_s: float | None = None
    late_repetitions: int | None = None
    clock_error_s: float | None = None
    spent_s: float = 0.0
    warmup_s: float = 0.0
    steady: bool = True
    unmeasured_s: float | None = None

    def stamps(self, phase: str) -> NDArray[np.int64]:
        """The stamps [ranks, n, 2] of those repetitions of a phase for which all ranks' stamps were
        kept."""
        chosen = [
            block.stamps for block in self.blocks if block.phase == phase and block.decided is None
        ]
        return (
            np.concatenate(chosen, axis=1)
            if chosen
            else np.zeros((len(self.ranks), 0, 2), dtype=np.int64)
        )

    def readings(self, name: str) -> list[tuple[int, float]]:
        """The values of a counter with their ranks, in chronological order."""
        return [
            (counts.rank, float(counts.values[name]))
            for counts in self.counts
            if name in counts.values
        ]


@dataclass(frozen=True)
class Refused:
    """All ranks agree that the case can't be measured here; it is skipped.

    `unsupported`: the library refused its calls, or their capture.
    """

    reason: str
    unsupported: bool = False


@dataclass(frozen=True)
class Failure:
    """A library call failed on every rank; the communicator is still usable."""

    reason: str


Outcome = Samples | Refused | Failure


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


# ---------------------------------------------------------------- one time per repetition


def counted_rows(planned: Planned) -> tuple[int, ...]:
    """The rows of the stamps whose clocks count, by the headline; several initiators at once count
    as senders."""
    headline = planned.shape.headline
    if headline not in HEADLINES:
        raise ValueError(f"headline {headline!r} is unknown; allowed: {', '.join(HEADLINES)}")
    if headline == "max_over_ranks":
        return tuple(range(len(planned.active)))
    return (
        planned.senders[:1]
        if headline == "initiator" and len(planned.case.pairs) < 2
        else planned.senders
    )


def deciding_rows(stamps: NDArray[np.int64], rows: Sequence[int]) -> NDArray[np.intp]:
    """For each repetition [n] the one of these rows that took longest.

    The maximum is taken within each repetition, never over the ranks' averages, which hide
    stragglers.
    """
    counted = stamps[list(rows)]
    latest = np.argmax(counted[..., 1] - counted[..., 0], axis=0)
    chosen: NDArray[np.intp] = np.take(np.asarray(rows, dtype=np.intp), latest)
    return chosen


def repetition_times(stamps: NDArray[np.int64], rows: Sequence[int], operations: int) -> Series:
    """Seconds per operation of each repetition, from stamps [ranks, n, (start, end)] in ns."""
    decided = stamps[deciding_rows(stamps, rows), np.arange(stamps.shape[1])]
    return np.asarray((decided[:, 1] - decided[:, 0]) / (NS_PER_S * operations), dtype=np.float64)


# ---------------------------------------------------------------- in bounded memory


class Timeline:
    """What rank 0 keeps about a visit. With `interval_s` the measured phase is also aggregated by
    intervals of that length.
    """

    def __init__(self, planned: Planned, interval_s: float | None = None) -> None:
        self._ranks = np.asarray(planned.active)
        self._rows = counted_rows(planned)
        self.blocks: list[Block] = []
        self.counts: list[Counts] = []
        self._series: dict[str, _Thinned] = defaultdict(_Thinned)
        self._intervals = (
            None if interval_s is None else _Intervals(next(iter(planned.active), 0), interval_s)
        )
        self._next = 0
        self._raw = 0
        self._condensed = 0
        self.operations = 1  # per sample, to give the times of intervals per operation

    def add(self, phase: str, stamps: NDArray[np.int64], times: Series | None = None) -> None:
        """Stamps [ranks, n, 2] of consecutive repetitions, in ns; `times` in s where they don't
        follow the headline."""
        rows = deciding_rows(stamps, self._rows)
        decided = stamps[rows, np.arange(stamps.shape[1])]
        times = (decided[:, 1] - decided[:, 0]) / NS_PER_S if times is None else times
        series = self._series[phase]
        self._keep(phase, series.total, stamps, rows, decided)
        series.append(times)
        if self._intervals is not None and phase == "measure":
            self.counts += self._intervals.add(stamps[0, :, 0], times, self.operations)

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
        """Drop blocks and counters, which are on disk; times and the open interval stay."""
        self.blocks.clear()
        self.counts.clear()

    def close(self) -> None:
        """End the last interval with the last repetition."""
        if self._intervals is not None:
            self.counts += self._intervals.close()

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
        elapsed = (stamps[:, :, 1] - stamps[:, :, 0]) / (NS_PER_S * self.operations)
        for rank, values in zip(
            self._ranks, np.quantile(elapsed, list(QUANTILES.values()), axis=1).T, strict=True
        ):
            self.counts.append(
                Counts(int(rank), int(stamps[0, 0, 0]), dict(zip(QUANTILES, values, strict=True)))
            )
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


class _Intervals:
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


# ---------------------------------------------------------------- a soak


class SoakTimeline(Timeline):
    """A timeline whose measured repetitions are added by a thread. It can be read after `close`,
    which waits for it."""

    def __init__(self, planned: Planned, interval_s: float) -> None:
        super().__init__(planned, interval_s)
        self._thread = ThreadPoolExecutor(
            1, "commbench-soak", partial(sys.setswitchinterval, SWITCH_S)
        )
        # the calls that may not have ended, oldest first
        self._waiting: deque[Future[None]] = deque()

    def add(self, phase: str, stamps: NDArray[np.int64], times: Series | None = None) -> None:
        add = partial(super().add, phase, stamps, times)
        if phase in ("measure", LATE):
            self.later(add)
        else:  # decisions during the warm-up need its times
            add()

    def add_parts(self, phase: str, parts: Sequence[NDArray[np.int64]]) -> None:
        if phase == "measure":  # the thread also copies them
            self.later(
                lambda: super(SoakTimeline, self).add(phase, np.concatenate(parts)[self._ranks])
            )
        else:
            super().add_parts(phase, parts)

    def count(self, counts: Counts) -> None:
        self.later(partial(super().count, counts))

    def close(self) -> None:
        self._wait_until_left(0)
        super().close()

    def later(self, function: Callable[[], None]) -> None:
        """Call a function in the thread, after those before it. Raises what one of them has
        raised."""
        self._wait_until_left(MOST_WAITING)
        self._waiting.append(self._thread.submit(function))

    def _wait_until_left(self, most: int) -> None:
        """Wait until at most so many functions have not ended. One that failed stays, so that each
        call raises it."""
        while len(self._waiting) > most or (self._waiting and self._waiting[0].done()):
            self._waiting[0].result()
            self._waiting.popleft()


@dataclass
class Timer:
    """For something that a soak does from time to time, with times of time.monotonic()."""

    last_s: float

    def due(self, now_s: float, every_s: float) -> bool:
        """Whether it is to be done now; then the time until it is due again begins."""
        is_due = now_s - self.last_s >= every_s
        self.last_s = now_s if is_due else self.last_s
        return is_due
