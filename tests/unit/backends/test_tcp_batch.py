"""Portions hold the same bytes in the same order, and no more than a call takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commbench.backends.tcp.batch import MOST_VIEWS, after, batches


@given(st.lists(st.binary(max_size=9), max_size=3000))
def test_a_batch_is_what_one_call_may_move(messages: list[bytes]) -> None:
    found = batches([memoryview(one) for one in messages])
    assert b"".join(bytes(view) for batch in found for view in batch.views) == b"".join(messages)
    assert all(0 < len(batch.views) <= MOST_VIEWS for batch in found)
    assert all(batch.size == sum(len(view) for view in batch.views) > 0 for batch in found)


@given(st.lists(st.binary(max_size=9), max_size=30), st.integers(0, 300))
def test_what_is_left_is_all_but_the_first_bytes(messages: list[bytes], done: int) -> None:
    left = list(after([memoryview(one) for one in messages], done))
    assert b"".join(left) == b"".join(messages)[done:]
    assert all(len(one) for one in left)
