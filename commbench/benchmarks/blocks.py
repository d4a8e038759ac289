"""The blocks of a divided message, the slots of a window: any two differ, whatever their length."""

from __future__ import annotations

from collections.abc import Iterable

from commbench.core.payload import concatenated, message
from commbench.core.program import PERIOD, Pattern

STRIDE = 3571  # prime: no library misplaces data by so many elements, and PERIOD blocks pass before two are alike
SHARED = 0  # the key of a stream that all ranks cut their blocks from: one period in memory, however many ranks


def shift(index: int) -> int:
    """Where block `index` begins in its stream, in elements."""
    return STRIDE * index % PERIOD


def joined_blocks(key: int, salt: int, count: int, indices: Iterable[int]) -> Pattern:
    """Blocks of `count` elements each, one behind another."""
    return concatenated([message(key, salt, count, shift(index)) for index in indices])
