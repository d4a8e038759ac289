"""What measuring a case gave. Frozen, raw first: every statistic can be computed again from the blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PHASES = ("connect", "warmup", "measure")
LATE = "late"  # measured repetitions that a rank began after the agreed instant; in no statistic


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive repetitions. `stamps` is int64 [ranks, n, 2]: start and end in ns on each rank's own clock.

    `first` is the number of its first repetition within the phase. Where `decided` [n] is given, only the rank that
    decided a repetition was kept: stamps are [1, n, 2] and these are the ranks they belong to.
    """

    phase: str
    index: int
    stamps: NDArray[np.int64]
    first: int = 0
    decided: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Counts:
    """Readings of counters: four columns of equal length; t_ns is on that rank's own clock."""

    rank: NDArray[np.int64]
    t_ns: NDArray[np.int64]
    name: NDArray[np.object_]
    value: NDArray[np.float64]

    @classmethod
    def of(cls, rank: int, t_ns: int, readings: Mapping[str, float]) -> Counts:
        """All counters of one rank at one time."""
        n = len(readings)
        names = np.array(list(readings), dtype=object)
        return cls(np.full(n, rank), np.full(n, t_ns), names, np.array(list(readings.values()), dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Samples:
    """A measured case; `ranks` names the rows of the stamps (ranks of the layout that took part).

    `series` holds the measured samples' seconds by the headline rule where the blocks are not all here: a soak
    writes them as it goes, a large world keeps a part, a window counts from the agreed instant on. `repetitions` is
    how many there were then. `late_repetitions` and `clock_error_s` are those of a window.
    """

    ranks: tuple[int, ...]
    blocks: tuple[Block, ...]
    block_k: int
    stop_reason: str
    wrong_elements: int
    engine: str
    counts: tuple[Counts, ...] = ()
    series: NDArray[np.float64] | None = None
    repetitions: int | None = None
    first_call_s: float | None = None
    late_repetitions: int | None = None
    clock_error_s: float | None = None

    def stamps(self, phase: str) -> NDArray[np.int64]:
        """The repetitions of a phase that were kept of all ranks, [ranks, n, 2]."""
        chosen = [block.stamps for block in self.blocks if block.phase == phase and block.decided is None]
        return np.concatenate(chosen, axis=1) if chosen else np.zeros((len(self.ranks), 0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Refused:
    """The case could not be measured here, and all ranks agree: a skip with its reason."""

    reason: str


@dataclass(frozen=True)
class Failure:
    """A library call failed on every rank; the communicator is still in step."""

    reason: str
