"""What measuring a case gave. Frozen, raw first: every statistic can be computed again from the blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PHASES = ("connect", "warmup", "measure")


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive repetitions. `stamps` is int64 [ranks, n, 2]: start and end in ns on each rank's own clock."""

    phase: str
    index: int
    stamps: NDArray[np.int64]


@dataclass(frozen=True)
class Count:
    """One reading of a counter, at t_ns on that rank's own clock."""

    rank: int
    t_ns: int
    name: str
    value: float


@dataclass(frozen=True, eq=False)
class Samples:
    """A measured case; `ranks` names the rows of the stamps (ranks of the layout that took part)."""

    ranks: tuple[int, ...]
    blocks: tuple[Block, ...]
    block_k: int
    stop_reason: str
    wrong_elements: int
    engine: str
    counts: tuple[Count, ...] = ()

    def stamps(self, phase: str) -> NDArray[np.int64]:
        """All repetitions of a phase, [ranks, n, 2]."""
        chosen = [block.stamps for block in self.blocks if block.phase == phase]
        return np.concatenate(chosen, axis=1) if chosen else np.zeros((len(self.ranks), 0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Refused:
    """The case could not be measured here, and all ranks agree: a skip with its reason."""

    reason: str


@dataclass(frozen=True)
class Failure:
    """A library call failed on every rank; the communicator is still in step."""

    reason: str
