"""payload=rounding: numbers whose sum depends on the order of the additions, the same on every
platform."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from commbench.core.payload import mixed
from commbench.core.program import PERIOD

from .exact import SIGNIFICAND_BITS, Numbers, Sums, error_bound, exact_sums

SEED = 1  # of the values; another one makes others
# magnitudes from 2^-10 to 2^6: 16 powers of two are more than the 8 bits of a bfloat16, and a
# float16 takes the sum of 1000 ranks and has no subnormal among them
LEAST_EXPONENT = -10
EXPONENT_BITS = 4
LEAST = 2.0**LEAST_EXPONENT
_INDEX = np.arange(PERIOD, dtype=np.int64)


@lru_cache(maxsize=256)
def summands(kind: str, rank: int, salt: int) -> Numbers:
    """What a rank contributes to each index of the period at check `salt`: a sign, one of 16 powers
    of two and all bits of a significand, each by chance, from a counter by splitmix64."""
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
    """The sum of all ranks at each index, and how far a result may be from it. The sums are exact
    for up to 2^16 ranks: summands have bits from 2^-62 to 2^5, which the two parts hold."""
    sums = exact_sums(summands(kind, rank, salt) for rank in range(size))
    return sums, error_bound(sums, kind, size)
