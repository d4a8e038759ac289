"""What an error says of many ranks."""

from __future__ import annotations

import pytest

from commbench.core.errors import Missing


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3 did not arrive at 'the start' within 60 s"),
        ([1, 2], "rank 1, 2 did not arrive at 'the start' within 60 s"),
        (
            range(1, 4096),
            "rank 1, 2, 3, 4, 5, 6, 7, 8 and 4087 more did not arrive at 'the start' within 60 s",
        ),
    ],
)
def test_missing_ranks_are_named_up_to_eight(ranks: list[int], text: str) -> None:
    assert str(Missing(ranks, "the start", 60.0)) == text
    assert Missing(ranks, "the start", 60.0, "gone").ranks == tuple(ranks)
    assert str(Missing(ranks, "the start", 60.0, "rank 3 has ended")) == f"{text}: rank 3 has ended"
