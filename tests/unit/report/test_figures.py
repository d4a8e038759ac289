"""Ticks of figures."""

from __future__ import annotations

import pytest

from commbench.report.figures import log_ticks, size_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1e-6, 1e-2, [1e-6, 1e-5, 1e-4, 1e-3, 1e-2]),
        (0.9e-6, 1.1e-5, [1e-6, 2e-6, 5e-6, 1e-5]),
        (1.6e-3, 2.7e-3, [1.6e-3, 1.8e-3, 2e-3, 2.2e-3, 2.4e-3, 2.6e-3]),
    ],
)
def test_a_short_logarithmic_axis_has_more_than_one_tick(
    low: float, high: float, ticks: list[float]
) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_sizes_are_marked_where_they_were_measured_unless_they_are_many() -> None:
    assert size_ticks([8, 4096, 2**22, 8], 6, 2**23) == [8, 4096, 2**22]
    octaves = [2.0**exponent for exponent in range(3, 23)]
    assert size_ticks(octaves, 6, 2**23) == [32, 1024, 2**15, 2**20]
    near = [1000, 1001, 2**20]  # their texts would overlap
    assert 1001 not in size_ticks(near, 900, 2**21)
