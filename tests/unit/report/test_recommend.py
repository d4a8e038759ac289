"""Which is best, in words: that of all launches, or only that of this run."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.report.crossover import UNDECIDED
from commbench.report.recommend import best_text, size_text

ROW: dict[str, Any] = {
    "best": "mpi 1x2",
    "median_s": 1e-6,
    "ci_low_s": 0.9e-6,
    "ci_high_s": 1.1e-6,
    "second": "gloo 1x2",
    "ratio": 3.0,
    "alike": ("mpi 1x2", "gloo 1x2"),
    "alike_s": (1e-6, 1.2e-6),
}


@pytest.mark.parametrize(
    ("launches", "best", "text"),
    [
        (2, "mpi 1x2", "mpi 1x2 was fastest in this run, "),
        (3, "mpi 1x2", "mpi 1x2 is fastest, "),
        (2, UNDECIDED, " are not distinguishable with 2 launches, too few to be sure"),
        (3, UNDECIDED, " are not distinguishable over 3 launches"),
    ],
)
def test_three_launches_are_enough_to_name_the_fastest(launches: int, best: str, text: str) -> None:
    words = best_text(ROW | {"launches": launches, "best": best})
    assert words.endswith(text) if best == UNDECIDED else words.startswith(text)


def test_a_size_is_exact_where_that_is_short() -> None:
    assert [size_text(size) for size in (8, 16 * 1024, 40e6)] == ["8 B", "16 KiB", "40 MB"]
