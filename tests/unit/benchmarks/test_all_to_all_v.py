"""all_to_all_v: what the busiest rank moves."""

from __future__ import annotations

import numpy as np

from commbench.benchmarks.all_to_all_v import rank_loads


def test_the_load_of_a_rank_is_without_what_it_sends_to_itself() -> None:
    matrix = np.array([[100, 1, 2], [3, 100, 4], [5, 6, 100]])
    assert rank_loads(matrix).tolist() == [8, 7, 11]
