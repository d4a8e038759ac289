"""Sums in a planted order, for a simulated world."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.payload import DType

from .exact import Numbers


def sums(summands: Numbers, kind: DType, order: str, call: int) -> list[NDArray[Any]]:
    """The words that each rank receives, from the values [ranks, count]; `order`: see
    backends/simulated/model.py."""
    ranks, count = summands.shape
    if order == "by_rank":
        return [_sum_from(first, summands, kind) for first in range(ranks)]
    if order == "by_chunk":
        every = np.stack([_sum_from(first, summands, kind) for first in range(ranks)])
        chunks = np.arange(count) * ranks // max(count, 1)
        return [every[chunks, np.arange(count)]] * ranks
    first = call % ranks if order == "changing" else 0
    return [_sum_from(first, summands, kind)] * ranks


def _sum_from(first: int, summands: Numbers, kind: DType) -> NDArray[Any]:
    """Rank after rank, beginning with one, rounded to the type after each addition."""
    total = kind.encode(summands[first])
    for values in np.roll(summands, -first, axis=0)[1:]:
        total = kind.encode(kind.decode(total) + values)
    return total
