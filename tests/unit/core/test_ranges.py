from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.core.ranges import format_ranges, parse_ranges


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("0\n", [0]),
        ("5,1-2", [5, 1, 2]),
        ("3-1", []),
        ("a-b", []),
        ("", []),
        ("0-999999", []),
        ("0-99999999999999999999", []),
        ("\u0660-\u0663", []),
        ("x", []),
    ],
)
def test_reading(text: str, numbers: list[int]) -> None:
    assert parse_ranges(text) == numbers


def test_writing() -> None:
    assert format_ranges({8, 0, 1, 2, 3}) == "0-3,8"
    assert format_ranges([5, 5]) == "5"
    assert format_ranges([]) == ""


@given(st.sets(st.integers(0, 300)))
def test_a_written_list_names_every_number_once(numbers: set[int]) -> None:
    assert parse_ranges(format_ranges(numbers)) == sorted(numbers)
