"""The values of payload=rounding."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from commbench.core.payload import dtype
from commbench.features.accuracy.exact import SIGNIFICAND_BITS
from commbench.features.accuracy.values import summands


@pytest.mark.parametrize("kind", SIGNIFICAND_BITS)
def test_values_are_numbers_of_their_type_of_both_signs_over_16_powers_of_two(kind: str) -> None:
    values = summands(kind, 5, 7)
    assert (dtype(kind).decode(dtype(kind).encode(values)) == values).all()
    assert 0.45 < (values < 0).mean() < 0.55
    _, exponents = np.frexp(values)
    powers, counts = np.unique(exponents - 1, return_counts=True)
    assert powers.tolist() == list(range(-10, 6))
    assert counts.min() > values.size / 16 * 0.8
    # the last place is used
    odd = np.abs(np.ldexp(values, SIGNIFICAND_BITS[kind] - exponents)) % 2
    assert 0.45 < odd.mean() < 0.55


def test_ranks_checks_and_types_have_values_of_their_own() -> None:
    each = [summands("float32", rank, salt) for rank in (0, 1, 300) for salt in (0, 1)]
    for number, first in enumerate(each):
        for second in each[number + 1 :]:
            assert (first == second).mean() < 0.001


def test_values_are_the_same_on_every_platform() -> None:
    """The hash of results of other machines depends on it."""
    digest = hashlib.sha256(summands("float32", 1, 0).astype("<f4").tobytes()).hexdigest()
    assert digest[:16] == "a9bd32e8a97a622b"
