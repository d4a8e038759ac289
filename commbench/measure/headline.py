"""From the stamps of all ranks to one time a repetition: whose clock counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Shape

Series = NDArray[np.float64]

NS_PER_S = 1e9
HEADLINES = ("initiator", "max_over_ranks", "max_over_senders")


def repetition_times(stamps: NDArray[np.int64], shape: Shape, senders: Sequence[int], initiator: int) -> Series:
    """Seconds per operation of each repetition, from stamps [ranks, n, (start, end)] in ns.

    `senders` and `initiator` are rows. The maximum is taken within a repetition, never of the ranks' averages,
    which hide who was late (method.md 2.3).
    """
    rows = deciding_rows(stamps, shape.headline, (initiator,) if shape.headline == "initiator" else senders)
    decided = stamps[rows, np.arange(stamps.shape[1])]
    return np.asarray((decided[:, 1] - decided[:, 0]) / (NS_PER_S * shape.operations_per_sample), dtype=np.float64)


def window_times(stamps: NDArray[np.int64], starts: NDArray[np.int64]) -> Series:
    """Seconds [n] from the common start to the end on the last rank: max over ranks(end) - start, on the global clock.

    `starts` [ranks, n] is the agreed instant on each rank's own clock, so the difference is taken there: the error of
    the clocks moves when a rank begins, not how long it takes. The rule is ReproMPI's for windows (Hunold and
    Carpen-Amarie): a delay of the start, as small as it is, counts.
    """
    return np.asarray((stamps[:, :, 1] - starts).max(axis=0) / NS_PER_S, dtype=np.float64)


def deciding_rows(stamps: NDArray[np.int64], headline: str, senders: Sequence[int]) -> NDArray[np.intp]:
    """The row whose clock counts, for each repetition [n]; several initiators at once count as senders."""
    if headline not in HEADLINES:
        raise ValueError(f"headline {headline!r} is none of {', '.join(HEADLINES)}")
    rows = list(range(len(stamps))) if headline == "max_over_ranks" else list(senders)
    counted = stamps[rows]
    latest = np.argmax(counted[..., 1] - counted[..., 0], axis=0)
    chosen: NDArray[np.intp] = np.take(np.asarray(rows, dtype=np.intp), latest)
    return chosen
