"""The results of a visit: the stamps of all ranks, and what is computed from them and from
counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from commbench.core.case import Planned, counting_ranks
from commbench.core.states import Headline
from commbench.hardware.nvml import throttled

NS_PER_S = 1e9
RUNNING = "running"  # stop reason of the samples of a visit that goes on: of a soak
HEADLINES = get_args(Headline)
# counters
RETRANSMITS = "measured.retransmits"  # see MeasuredCounters
CORE_WAIT = "measured.core_wait_share"  # of the repetitions: see Blocks.waited_s
MEASURED_HOST_BOUND = "measured.host_bound_repetitions"
GPU_THROTTLE_REASONS = "gpu.throttle_reasons"


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
    and drops its blocks, a large world keeps only a part of them. `repetitions` is then the number
    of all samples. `spent_s` is the time in measured blocks. `operation_s`: see TimingStrategy.
    `findings`: see measure.measuring.
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
    spent_s: float = 0.0
    warmup_s: float = 0.0
    steady: bool = True
    operation_s: float | None = None
    findings: Mapping[str, Any] = field(default_factory=dict)

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


@dataclass(frozen=True)
class Wrong:
    """So many elements of a row are not what they must be: it has no numbers."""

    elements: int


Outcome = Samples | Refused | Failure


# ---------------------------------------------------------------- one time per repetition


def counted_rows(planned: Planned) -> tuple[int, ...]:
    """The rows of the stamps whose clocks count."""
    headline = planned.shape.headline
    if headline not in HEADLINES:
        raise ValueError(f"headline {headline!r} is unknown; allowed: {', '.join(HEADLINES)}")
    counted = counting_ranks(planned.case, headline, planned.shape.ranks)
    rows = enumerate(planned.active)
    return tuple(row for row, rank in rows if counted is None or rank in counted)


def deciding_rows(stamps: NDArray[np.int64], rows: Sequence[int]) -> NDArray[np.intp]:
    """For each repetition [n] the one of these rows that took longest.

    The maximum is taken within each repetition, never over the ranks' averages, which hide
    stragglers.
    """
    counted = stamps[list(rows)]
    latest = np.argmax(counted[..., 1] - counted[..., 0], axis=0)
    chosen: NDArray[np.intp] = np.take(np.asarray(rows, dtype=np.intp), latest)
    return chosen


def repetition_times(
    stamps: NDArray[np.int64], places: ArrayLike, operations: int
) -> NDArray[np.float64]:
    """Seconds per operation of each repetition [..., n] of the slowest of these ranks, from stamps
    [ranks, n, (start, end)] in ns; `places` [..., counted] are their rows."""
    counted = stamps[np.asarray(places)]
    slowest_ns = (counted[..., 1] - counted[..., 0]).max(axis=-2)
    return np.asarray(slowest_ns / (NS_PER_S * operations), dtype=np.float64)


# ---------------------------------------------------------------- counters


def readings(counts: Iterable[Counts], name: str) -> list[tuple[int, float]]:
    """The values of a counter with their ranks, in chronological order."""
    return [(each.rank, float(each.values[name])) for each in counts if name in each.values]


def is_throttled(counts: Iterable[Counts]) -> bool:
    """Whether a GPU lowered its clock."""
    return any(throttled(int(mask)) for _, mask in readings(counts, GPU_THROTTLE_REASONS))


def core_wait_share(counts: Iterable[Counts]) -> float | None:
    """Of the measured time of the rank that waited longest for a core; None where unknown."""
    return max((share for _, share in readings(counts, CORE_WAIT)), default=None)


def host_bound_share(counts: Iterable[Counts], repetitions: int) -> float:
    """Of the repetitions before which a GPU waited for its host, on the worst rank."""
    last_of_ranks = dict(readings(counts, MEASURED_HOST_BOUND))
    return max(last_of_ranks.values(), default=0.0) / max(1, repetitions)
