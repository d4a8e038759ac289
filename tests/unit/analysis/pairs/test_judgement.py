"""What the rule finds in a matrix: a pair beyond the factor and the spread of its class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_worlds import INTERVAL, changed, row, world

from commbench.analysis.pairs.judgement import judged_matrices
from commbench.results.row import Row
from commbench.stats.thresholds import SLOW_FACTOR


def test_the_edge_of_a_wide_class_is_no_fault() -> None:
    """Beyond the factor, but within 3 standard deviations of the others."""
    times = np.linspace(1.0, 1.7, 12) * 1e-6
    pairs = [(first, second) for first in range(4) for second in range(4) if first != second]
    rows = [row(f"{a}-{b}", time, 4) for (a, b), time in zip(pairs, times, strict=True)]
    assert times[-1] * (1 - INTERVAL) > SLOW_FACTOR * np.median(times[:-1])
    assert judged_matrices(rows)[0].slow == {}


def in_wide_class(median_s: float, low_s: float) -> list[Row]:
    """Eleven pairs from 0.8 to 1.2 us, whose MAD is 0.12 us: 3 standard deviations are 0.53 us. And
    one more."""
    pairs = [(first, second) for first in range(4) for second in range(4) if first != second]
    times = [*np.linspace(0.8e-6, 1.2e-6, 11), median_s]
    rows = [row(f"{a}-{b}", time, 4) for (a, b), time in zip(pairs, times, strict=True)]
    return [*rows[:-1], replace(rows[-1], ci_low_s=low_s)]


@pytest.mark.parametrize(
    ("low_us", "slow"),
    [(1.37, False), (1.52, False), (1.55, True)],  # below MAD x 3, below and above MAD x 1.4826 x 3
)
def test_the_interval_must_lie_beyond_three_standard_deviations(low_us: float, slow: bool) -> None:
    rows = in_wide_class(1.6e-6, low_us * 1e-6)
    assert list(judged_matrices(rows)[0].slow) == ([(3, 2)] if slow else [])


def test_a_median_beyond_the_factor_is_not_enough() -> None:
    """The interval begins below it."""
    rows = world(4, {(0, 1): 1.5, (1, 0): 1.5})
    assert list(judged_matrices(rows)[0].slow) == [(0, 1), (1, 0)]
    wider = [
        changed(entry, {"ci_low_s": 1.15 * 2e-6} if (entry.median_s or 0.0) > 2.5e-6 else {})
        for entry in rows
    ]
    assert judged_matrices(wider)[0].slow == {}


@given(
    st.integers(2, 5).flatmap(
        lambda size: st.tuples(
            st.lists(st.floats(1e-9, 1e3), min_size=size**2, max_size=size**2), st.integers(1, size)
        )
    )
)
def test_no_finding_contradicts_the_times(world_times: tuple[list[float], int]) -> None:
    """Whatever the times: a slow pair is beyond the factor of at least half of its class, and an
    asymmetric one of its way back; the order of the rows does not matter."""
    times, ranks_per_node = world_times
    size = round(len(times) ** 0.5)
    rows = [
        row(f"{index // size}-{index % size}", time, ranks_per_node)
        for index, time in enumerate(times)
    ]
    (matrix,) = judged_matrices(rows)
    for pair, (median_s, typical_s) in matrix.slow.items():
        alike = matrix.classes[matrix.layout.link(pair)]
        faster = [median for median in alike.values() if median.value <= typical_s]
        assert alike[pair].value == median_s > SLOW_FACTOR * typical_s
        assert 2 * len(faster) >= len(alike) - 1
    for (first, second), (there_s, back_s) in matrix.asymmetric.items():
        assert (there_s, back_s) == (times[first * size + second], times[second * size + first])
        assert there_s > SLOW_FACTOR * back_s
    (other,) = judged_matrices(rows[::-1])
    assert (other.slow, other.asymmetric) == (matrix.slow, matrix.asymmetric)
