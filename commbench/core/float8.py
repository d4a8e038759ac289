"""Floating types of 8 bits, which numpy lacks: their values by their bytes, as in the OCP 8-bit
Floating Point Specification."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIGN = 0x80


class Format(NamedTuple):
    """`numbers`: how many bytes without a sign are finite. The next one is `beyond`, and any others
    are NaN."""

    fraction_bits: int
    bias: int
    numbers: int
    beyond: float


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 0x7F, np.nan),
    "float8_e5m2": Format(2, 15, 0x7C, np.inf),
}


def decoded(name: str, words: NDArray[np.uint8]) -> NDArray[np.float64]:
    form = FORMATS[name]
    values = np.full(SIGN, np.nan)
    values[: form.numbers] = _magnitudes(form)[:-1]
    values[form.numbers] = form.beyond
    return np.asarray(np.concatenate((values, -values))[words])


def encoded(name: str, values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Rounded to nearest even; what is too large is `beyond`."""
    magnitudes = _magnitudes(FORMATS[name])
    halfway = (magnitudes[1:] + magnitudes[:-1]) / 2
    # they differ where a value is halfway between two
    lower, upper = (np.searchsorted(halfway, np.abs(values), side) for side in ("left", "right"))
    words = np.where(lower % 2, upper, lower) + SIGN * np.signbit(values)
    return np.asarray(words, dtype=np.uint8)


@cache
def _magnitudes(form: Format) -> NDArray[np.float64]:
    """Of the finite bytes without a sign, and of the next one as if it were finite, too."""
    exponents, fractions = np.divmod(np.arange(form.numbers + 1), 2**form.fraction_bits)
    fractions += 2**form.fraction_bits * (exponents > 0)  # else subnormal
    powers = np.maximum(exponents, 1) - form.bias - form.fraction_bits
    return np.asarray(np.ldexp(fractions, powers), dtype=np.float64)
