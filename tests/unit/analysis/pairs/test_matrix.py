"""A matrix of pairs: whether its pairs are shown by their times or by their rates."""

from __future__ import annotations

from typing import Any

import pytest
from pair_worlds import world

from commbench.analysis.pairs.matrix import matrices


@pytest.mark.parametrize(
    ("values", "cell"),
    [
        ({}, "2.00 us"),
        ({"benchmark": "p2p_bandwidth", "window": 64}, "4.00 GB/s"),
        ({"benchmark": "stream"}, "32.0 Gb/s"),  # imported: the file may not tell its threads
        ({"benchmark": "stream", "stream_threads": "each"}, "32.0 Gb/s"),
    ],
)
def test_messages_in_one_direction_have_a_rate(values: dict[str, Any], cell: str) -> None:
    (matrix,) = matrices(world(2, algbw_gb_per_s=4.0, **values))
    assert matrix.number_with_unit((0, 1)) == cell
