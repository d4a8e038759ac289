"""payload=rounding: numbers whose sum depends on the order of the additions, the same on every
platform."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from commbench.core.payload import mixed
from commbench.core.program import PERIOD, Pattern, Segment

from .exact import SIGNIFICAND_BITS, Numbers, Sums, error_bound, exact_sums

SEED = 1  # of the values; another one makes others
# magnitudes from 2^-10 to 2^6: float16 takes sums of 1000 ranks, and none of its summands is
# subnormal
LEAST_EXPONENT = -10
EXPONENT_BITS = 4
LEAST_GROUP = 2  # ranks of each of two groups that reduce at once
Groups = tuple[tuple[int, ...], ...]
_INDEX = np.arange(PERIOD, dtype=np.int64)


def contribution(kind: str, rank: int, salt: int, count: int, shift: int = 0) -> Pattern:
    """What a rank contributes; see core.payload.contribution."""
    return Pattern((Segment(count, summands(kind, rank, salt), shift % PERIOD),))


def total(kind: str, size: int, salt: int, count: int, shift: int = 0) -> Pattern:
    """The result of a reduction over `size` ranks: any value within the error bound."""
    sums, bound = sums_and_bound(kind, size, salt)
    return Pattern((Segment(count, sums.high, shift % PERIOD, bound),))


@lru_cache(maxsize=256)
def summands(kind: str, rank: int, salt: int) -> Numbers:
    """A sign, one of 16 powers of two and a full significand for each index, each by chance."""
    keys = (_INDEX + (rank << 13) + (salt << 40)).astype(np.uint64)
    words = mixed(keys ^ mixed(np.array([SEED], dtype=np.uint64)))
    more = mixed(words ^ (words >> np.uint64(31)))
    bits = SIGNIFICAND_BITS[kind]
    exponents = (words >> np.uint64(63 - EXPONENT_BITS)) % np.uint64(1 << EXPONENT_BITS)
    significands = (more >> np.uint64(65 - bits)).astype(np.float64) + 2.0 ** (bits - 1)
    signs = np.where(words >> np.uint64(63), -1.0, 1.0)
    return np.ldexp(signs * significands, exponents.astype(np.int64) + LEAST_EXPONENT - bits + 1)


@lru_cache(maxsize=64)
def sums_and_bound(kind: str, size: int, salt: int) -> tuple[Sums, Numbers]:
    """Of each index of the period. The sums are exact for up to 2^16 ranks: summands have bits from
    2^-62 to 2^5, which the two parts hold."""
    sums = exact_sums(summands(kind, rank, salt) for rank in range(size))
    return sums, error_bound(sums, kind, size)


def two_groups(size: int) -> Groups:
    """The ranks of the first half of a layout and as many others; none where it is too small."""
    half = size // 2
    return () if half < LEAST_GROUP else (tuple(range(half)), tuple(range(half, 2 * half)))
