"""Message contents: element types, and small integers, exact in all of them, that differ by rank,
index and check.

At most CONTRIBUTORS ranks contribute more than the neutral element to an index, so a sum is at most
8 x 15 = 120 and exact even in int8 (127), bfloat16 (2^8) and float16 (2^11). A type of 8 bits has
two contributors and smaller numbers. What it only moves may be rounded when it is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import float8
from .errors import ConfigError
from .program import PERIOD, Pattern, Segment
from .suggestions import did_you_mean
from .variables import ReductionName

CONTRIBUTORS = 8
LARGEST = 15
LARGEST_SUM = CONTRIBUTORS * LARGEST
# prime: an unlikely offset for misplaced data, and PERIOD blocks pass before two are alike
BLOCK_STRIDE = 3571
# key of a stream from which all ranks take their blocks, so that one period is in memory for all
SHARED = 0
# of 64 KiB: three checks of each of 512 ranks in this process, as in a simulated world
CACHED_STREAMS = 2048
_INDEX = np.arange(PERIOD, dtype=np.int64)


@dataclass(frozen=True)
class DType:
    """`word` is the numpy type that stores one element; bfloat16 has none and is stored as
    uint16, and float8 as uint8. `most`: the largest sum of a payload."""

    name: str
    itemsize: int
    word: str
    floating: bool
    most: int = LARGEST_SUM

    @property
    def is_float8(self) -> bool:
        return self.name in float8.FORMATS

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Numbers as elements of this type, rounded to nearest even."""
        if self.name == "bfloat16":
            bits = values.astype(np.float32).view(np.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        if self.is_float8:
            return float8.encoded(self.name, values)
        return values.astype(self.word)

    def decode(self, words: NDArray[Any]) -> NDArray[Any]:
        """Elements as float64 (floating types) or as themselves (integers)."""
        if self.name == "bfloat16":
            return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if self.is_float8:
            return float8.decoded(self.name, words)
        return words.astype(np.float64) if self.floating else words


# of torch, NCCL and people
OTHER_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
DTYPES = {
    kind.name: kind
    for kind in (
        DType("float64", 8, "float64", True),
        DType("float32", 4, "float32", True),
        DType("float16", 2, "float16", True),
        DType("bfloat16", 2, "uint16", True),
        DType("int64", 8, "int64", False),
        DType("int32", 4, "int32", False),
        DType("int8", 1, "int8", False),
        DType("uint8", 1, "uint8", False),
        # all integers are exact up to 2^4 and 2^3
        DType("float8_e4m3fn", 1, "uint8", True, most=16),
        DType("float8_e5m2", 1, "uint8", True, most=8),
    )
}


def dtype(name: str) -> DType:
    """The element type of that name; raises ConfigError."""
    known = DTYPES.get(OTHER_NAMES.get(name, name))
    if known is None:
        hint = did_you_mean(name, DTYPES)
        raise ConfigError(f"dtype={name} is unknown; {hint}allowed: {', '.join(DTYPES)}")
    return known


def message(key: int, salt: int, count: int, shift: int = 0) -> Pattern:
    """`count` elements of the stream of sender `key` at check `salt`, starting at position
    `shift`."""
    return Pattern((Segment(count, _values(key, salt), shift % PERIOD),))


def concatenated(parts: list[Pattern]) -> Pattern:
    """One buffer that holds several messages one after another."""
    return Pattern(tuple(segment for part in parts for segment in part.segments))


def block_start(index: int) -> int:
    """The first element of block `index` in its stream; any two blocks differ, whatever their
    length."""
    return BLOCK_STRIDE * index % PERIOD


def joined_blocks(key: int, salt: int, count: int, indices: Iterable[int]) -> Pattern:
    """Blocks of `count` elements each, one after another: parts of a divided message, or slots of a
    window."""
    return concatenated([message(key, salt, count, block_start(index)) for index in indices])


def contribution(
    rank: int,
    size: int,
    salt: int,
    reduction: ReductionName,
    count: int,
    shift: int = 0,
    most: int = LARGEST_SUM,
) -> Pattern:
    """The contribution of a rank to a reduction over `size` ranks; a sum is at most `most`."""
    period = _contributed(rank, size, salt, reduction, most)
    return Pattern((Segment(count, period, shift % PERIOD),))


def reduced(
    size: int,
    salt: int,
    reduction: ReductionName,
    count: int,
    shift: int = 0,
    most: int = LARGEST_SUM,
) -> Pattern:
    """The result of a reduction over `size` ranks; an average is exact where `size` is a power of
    two."""
    divisor = size if reduction == "avg" else 1
    segment = Segment(count, _reduced(size, salt, reduction, most), shift % PERIOD)
    return Pattern((segment,), ulp=0 if divisor & (divisor - 1) == 0 else size, divisor=divisor)


@lru_cache(maxsize=CACHED_STREAMS)
def _values(key: int, salt: int) -> NDArray[np.int64]:
    """Integers 1 ... LARGEST, scrambled so that neighbours, ranks and checks differ."""
    return _scrambled(np.full(PERIOD, key, dtype=np.int64), salt)


def _scrambled(keys: NDArray[np.int64], salt: int) -> NDArray[np.int64]:
    """splitmix64's finaliser: any two keys or salts agree in one of LARGEST elements, and not in
    long runs."""
    words = mixed((_INDEX + (keys << 13) + (salt << 40)).astype(np.uint64))
    return (words >> np.uint64(31)).astype(np.int64) % LARGEST + 1


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The two rounds of splitmix64's finaliser: the upper bits depend on every bit of a word."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words


def _summands(most: int) -> tuple[int, int]:
    """How many ranks contribute to an index of a sum, and the largest number of each."""
    return (2, most // 2) if most < LARGEST_SUM else (CONTRIBUTORS, LARGEST)


@lru_cache(maxsize=256)
def _contributed(
    rank: int, size: int, salt: int, reduction: ReductionName, most: int
) -> NDArray[np.int64]:
    turn = (rank - _INDEX - salt) % size  # ranks take turns along the buffer
    if reduction == "prod":
        return np.where(turn == 0, 2, 1)
    values = _values(rank, salt)
    if reduction in ("max", "min"):
        return np.where(turn < CONTRIBUTORS, values, 1 if reduction == "max" else LARGEST)
    contributors, largest = _summands(most)
    return np.where(turn < contributors, (values - 1) % largest + 1, 0)


@lru_cache(maxsize=64)
def _reduced(size: int, salt: int, reduction: ReductionName, most: int) -> NDArray[np.int64]:
    """Computed from the contributors of each index only, so the cost does not grow with the number
    of ranks."""
    if reduction == "prod":
        return np.full(PERIOD, 2, dtype=np.int64)
    turns = range(min(CONTRIBUTORS, size))
    stack = np.stack([_scrambled((_INDEX + salt + turn) % size, salt) for turn in turns])
    if reduction in ("sum", "avg"):
        contributors, largest = _summands(most)
        summands = (stack[:contributors] - 1) % largest + 1
        return np.asarray(summands.sum(axis=0), dtype=np.int64)
    return np.asarray(
        stack.max(axis=0) if reduction == "max" else stack.min(axis=0), dtype=np.int64
    )
