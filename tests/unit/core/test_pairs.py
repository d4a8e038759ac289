"""Pairs in rounds: everybody at once, nobody twice, nobody forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.core.pairs import all_pairs, pairs_text, rounds

pairs = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=60)


@pytest.mark.parametrize("size", range(1, 18))
def test_the_full_matrix_has_as_few_rounds_as_there_can_be(size: int) -> None:
    matrix = all_pairs(size)
    assert sorted(matrix) == [(a, b) for a in range(size) for b in range(size)]
    packed = rounds(matrix)
    one_way = 0 if size == 1 else size - 1 if size % 2 == 0 else size
    assert len(packed) == 1 + 2 * one_way, "each with itself at once, then n-1 rounds there and n-1 back"
    assert all(len(one) == size // 2 for one in packed[1:])


@given(pairs)
def test_rounds_share_no_rank_and_lose_no_pair(chosen: list[tuple[int, int]]) -> None:
    packed = rounds(chosen)
    assert sorted(pair for one in packed for pair in one) == sorted(chosen)
    for one in packed:
        ranks = [rank for pair in one for rank in set(pair)]
        assert len(ranks) == len(set(ranks))


def test_neighbours_need_two_rounds() -> None:
    assert rounds([(rank, rank + 1) for rank in range(7)]) == [
        [(0, 1), (2, 3), (4, 5), (6, 7)],
        [(1, 2), (3, 4), (5, 6)],
    ]


def test_the_text_of_pairs() -> None:
    assert pairs_text([(0, 2), (1, 3)]) == "0-2 1-3"
    assert pairs_text([]) == ""
