"""Exact sums, units in the last place, and the bound of every order."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from commbench.core.payload import dtype
from commbench.core.program import PERIOD
from commbench.features.accuracy.exact import (
    SIGNIFICAND_BITS,
    error_bound,
    errors_ulp,
    exact_sums,
    unit_in_last_place,
)
from commbench.features.accuracy.values import LEAST, summands, sums_and_bound


@pytest.mark.parametrize("kind", SIGNIFICAND_BITS)
def test_the_sum_of_all_ranks_is_that_of_rational_numbers(kind: str) -> None:
    ranks = 9
    sums, _ = sums_and_bound(kind, ranks, 3)
    values = [summands(kind, rank, 3) for rank in range(ranks)]
    for index in (0, 1, 100, PERIOD - 1):
        exact = sum(Fraction(float(each[index])) for each in values)
        assert Fraction(float(sums.high[index])) + Fraction(float(sums.low[index])) == exact
        assert sums.high[index] == float(exact)


def test_a_catastrophic_cancellation_has_the_predicted_error() -> None:
    """1e8 + 1 is 1e8 in float32, so 1 is lost: 2^23 units in the last place of the exact sum."""
    sums = exact_sums(np.array([value]) for value in (1e8, 1.0, -1e8))
    assert sums.high[0] == 1.0
    in_order = np.float32(np.float32(np.float32(1e8) + np.float32(1)) - np.float32(1e8))
    unit = unit_in_last_place(sums.high, "float32", LEAST)
    errors = errors_ulp(np.array([float(in_order)]), sums.high, sums.low, unit)
    assert errors[0] == 2.0**23
    assert abs(float(in_order) - 1.0) <= error_bound(sums, "float32", 3)[0]


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_no_order_of_additions_exceeds_the_bound_and_some_come_near_an_ulp(kind: str) -> None:
    ranks = 4
    sums, bound = sums_and_bound(kind, ranks, 0)
    values = [summands(kind, rank, 0) for rank in range(ranks)]
    worst = np.zeros(bound.size)
    for order in permutations(range(ranks)):
        total = dtype(kind).encode(values[order[0]])
        for rank in order[1:]:
            total = dtype(kind).encode(dtype(kind).decode(total) + values[rank])
        error = np.abs((dtype(kind).decode(total) - sums.high) - sums.low)
        worst = np.maximum(worst, error)
    assert (worst <= bound).all()
    assert (worst > 0.2 * bound).any()


@pytest.mark.parametrize(("kind", "unit"), [("float32", 2**-23), ("bfloat16", 2**-7)])
def test_a_unit_in_the_last_place_is_the_distance_of_neighbours(kind: str, unit: float) -> None:
    values = np.array([1.0, -1.5, 2.0, 0.0])
    expected = [unit, unit, 2 * unit, unit * LEAST]
    assert unit_in_last_place(values, kind, LEAST).tolist() == expected


def test_what_is_not_finite_has_an_infinite_error() -> None:
    one = np.ones(3)
    errors = errors_ulp(np.array([np.nan, -np.inf, 1.0]), one, np.zeros(3), one)
    assert errors.tolist() == [np.inf, np.inf, 0.0]


def test_with_very_many_ranks_a_short_type_has_no_bound() -> None:
    sums = exact_sums([np.array([1.0])])
    bound = error_bound(sums, "bfloat16", 257)[0]
    assert 1e300 < bound < np.inf, "infinities are beyond it"
