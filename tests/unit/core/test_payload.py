"""The values that travel: every reduction against plain integers of all ranks, and no two messages
alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pytest
from loops import for_each

from commbench.core.payload import DTYPES, concatenated, contribution, message, reduced
from commbench.core.program import PERIOD, Pattern

INDICES = [*range(60), *range(PERIOD - 20, PERIOD + 20), *range(3 * PERIOD - 5, 3 * PERIOD + 5)]
COUNT = INDICES[-1] + 1
REDUCE: dict[str, Callable[[Iterable[int]], int]] = {
    "sum": sum, "avg": sum, "prod": math.prod, "min": min, "max": max
}  # fmt: skip
MOST = (120, 16, 8)  # the largest sums of a usual type, float8_e4m3fn and float8_e5m2
SIZES = (*range(1, 11), 16, 17, 40)  # at most 8 ranks contribute to an element


def elements(pattern: Pattern, indices: Iterable[int] = INDICES) -> list[int]:
    """From the definition of a pattern, in Python's own integers."""
    (segment,) = pattern.segments
    return [int(segment.period[(segment.shift + index) % PERIOD]) for index in indices]


@for_each(("reduction", "size", "most"), itertools.product(REDUCE, SIZES, MOST))
def test_a_reduction_gives_what_all_ranks_contributed(reduction: str, size: int, most: int) -> None:
    shift = 1234 * (size % 3)
    salt = size % 4
    columns = [
        elements(contribution(rank, size, salt, reduction, COUNT, shift, most))
        for rank in range(size)
    ]
    wanted = [REDUCE[reduction](column) for column in zip(*columns, strict=True)]
    result = reduced(size, salt, reduction, COUNT, shift, most)
    assert elements(result) == wanted
    assert result.divisor == (size if reduction == "avg" else 1)
    assert (result.ulp == 0) == (reduction != "avg" or math.log2(size).is_integer())


@for_each(("reduction", "size", "most"), itertools.product(REDUCE, [2, 9, 40], MOST))
def test_every_rank_counts_somewhere(reduction: str, size: int, most: int) -> None:
    """A library that leaves a rank out must be caught: the result without it differs."""
    contributed = (
        contribution(rank, size, 0, reduction, PERIOD, most=most) for rank in range(size)
    )
    columns = np.array([each.segments[0].period for each in contributed])
    combined = {"sum": np.sum, "avg": np.sum, "prod": np.prod, "min": np.min, "max": np.max}[
        reduction
    ]
    for rank in range(size):
        assert (
            combined(np.delete(columns, rank, axis=0), axis=0) != combined(columns, axis=0)
        ).any(), rank


def test_no_sum_leaves_the_exact_range_of_any_type() -> None:
    """Contributions are not negative, so a partial sum in any order is at most the sum itself."""
    for size, reduction in itertools.product(SIZES, REDUCE):
        period = reduced(size, 1, reduction, PERIOD).segments[0].period
        assert period.min() >= 1
        assert (
            min(
                contribution(rank, size, 1, reduction, 1).segments[0].period.min()
                for rank in range(size)
            )
            >= 0
        )
        for kind in DTYPES.values():
            if kind.is_float8 and reduction in ("max", "min"):
                continue  # rounding keeps the order of numbers
            period = reduced(size, 1, reduction, PERIOD, most=kind.most).segments[0].period
            assert (kind.decode(kind.encode(period)) == period).all(), kind.name


def test_an_average_over_a_power_of_two_needs_no_more_digits_than_bfloat16_has() -> None:
    for size in (2, 4, 8, 16, 32):
        for value in set(elements(reduced(size, 0, "avg", PERIOD), range(PERIOD))):
            assert Fraction(value, size).numerator < 2**8


def test_messages_of_different_ranks_and_checks_differ_almost_everywhere() -> None:
    """15 values: chance makes 1 in 15 equal. A rank's old message or another rank's must not pass
    for the right one."""
    kinds = itertools.product((0, 1, 2, 5, 14, 61, 1 << 20), range(4))
    messages = [np.array(elements(message(key, salt, 1000), range(1000))) for key, salt in kinds]
    for first, second in itertools.combinations(messages, 2):
        assert np.mean(first == second) < 0.15


@pytest.mark.parametrize("count", [100, 256, 1000, 1024, 4096, 10_000])
def test_the_slots_of_a_window_differ_almost_everywhere(count: int) -> None:
    length = min(count, 500)
    slots = [
        np.array(elements(message(0, 0, length, shift=slot * count), range(length)))
        for slot in range(16)
    ]
    for first, second in itertools.combinations(slots, 2):
        assert np.mean(first == second) < 0.25


def test_all_values_are_used_and_none_is_the_neutral_zero() -> None:
    values = elements(message(7, 3, PERIOD), range(PERIOD))
    counts = [values.count(value) for value in range(1, 16)]
    assert sum(counts) == PERIOD
    assert min(counts) > 0.8 * PERIOD / 15


def test_a_shift_goes_on_where_the_last_message_ended() -> None:
    whole = elements(message(2, 0, 300), range(300))
    assert elements(message(2, 0, 100, shift=200), range(100)) == whole[200:]
    assert message(2, 0, 10, shift=PERIOD + 7).segments[0].shift == 7


def test_parts_stay_in_order() -> None:
    parts = [message(rank, 0, 10 + rank) for rank in range(3)]
    assert [segment.count for segment in concatenated(parts).segments] == [10, 11, 12]
    assert concatenated(parts).segments[1] is parts[1].segments[0]
