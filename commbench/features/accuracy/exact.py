"""Exact sums, the distance of a result from them in units in the last place, and the bound that no
order of additions exceeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
# bits of the significand, with the leading one, and the exponent of the least subnormal
SIGNIFICAND_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
LEAST_EXPONENTS = {"float64": -1074, "float32": -149, "float16": -24, "bfloat16": -133}


@dataclass(frozen=True, eq=False)
class Sums:
    """`high` is the exact sum of each index, rounded to float64, `low` what that leaves out;
    `magnitude`: the sum of the absolute values."""

    high: Numbers
    low: Numbers
    magnitude: Numbers


def exact_sums(summands: Iterable[Numbers]) -> Sums:
    """Of the arrays of all ranks, index by index, in twice the precision of float64: the error of
    each addition is exact and added up by itself (Ogita, Rump and Oishi, Accurate Sum and Dot
    Product, SIAM J. Sci. Comput. 26, 2005, algorithm 4.4)."""
    high, low, magnitude = np.zeros(1), np.zeros(1), np.zeros(1)
    for values in summands:
        high, error = two_sum(high, values)
        low = low + error
        magnitude = magnitude + np.abs(values)
    return Sums(*two_sum(high, low), magnitude)


def two_sum(first: Numbers, second: Numbers) -> tuple[Numbers, Numbers]:
    """The rounded sum and its error, which is a float64, too (Knuth, The Art of Computer
    Programming 2, 4.2.2, theorem B)."""
    total = first + second
    back = total - first
    return total, (first - (total - back)) + (second - back)


def error_bound(sums: Sums, kind: str, ranks: int) -> Numbers:
    """How far any order of additions in this type, or a wider one, can be from the exact sum:
    k u / (1 - k u) times the sum of the absolute values, for k = n - 1 additions and u = 2^-p, half
    a unit in the last place of 1 (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
    section 4.2). From k u = 1 on it excludes only what is not finite."""
    share = (ranks - 1) * 2.0 ** -SIGNIFICAND_BITS[kind]
    gamma = share / (1 - share) if share < 1 else np.inf
    bound = gamma * sums.magnitude + np.abs(sums.low)
    return np.asarray(np.minimum(bound, np.finfo(np.float64).max))


def unit_in_last_place(values: Numbers, kind: str, least: float) -> Numbers:
    """The distance of neighbouring numbers of that type at these values, or at `least` where they
    are smaller: a sum of 0 has no unit of its own."""
    _, exponents = np.frexp(np.maximum(np.abs(values), least))  # from 2^(exponent - 1) on
    places = np.maximum(exponents - SIGNIFICAND_BITS[kind], LEAST_EXPONENTS[kind])
    return np.asarray(np.ldexp(1.0, places))


def errors_ulp(results: Numbers, high: Numbers, low: Numbers, unit: Numbers) -> Numbers:
    """How far results are from the exact sums, in units in the last place; infinite for what is not
    finite."""
    with np.errstate(invalid="ignore"):
        units = np.abs((results - high) - low) / unit
    return np.where(np.isfinite(results), units, np.inf)
