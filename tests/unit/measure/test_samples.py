"""Whose clock counts in each repetition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng
from planned_cases import planned_of

from commbench.measure.samples import counted_rows, deciding_rows, repetition_times
from commbench.stats.series import summarise


def stamps_of(elapsed_ns: list[list[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    elapsed = np.array(elapsed_ns, dtype=np.int64)
    # as far from zero as a clock of a machine that is up for 30 years
    start = np.full_like(elapsed, 10**18)
    return np.stack([start, start + elapsed], axis=-1)


@pytest.mark.parametrize(
    ("headline", "pairs", "expected_ns"),
    [
        ("initiator", [(1, 0)], [20, 60]),
        ("initiator", [(1, 0), (2, 0)], [30, 60]),  # several at once
        ("receiver", [(1, 0)], [10, 50]),
        ("max_over_ranks", [], [30, 60]),
        ("max_over_ranks", [(0, 1)], [30, 60]),
        ("max_over_senders", [(0, 1), (2, 1)], [30, 50]),
    ],
)
def test_headline_says_whose_clock_counts(
    headline: str, pairs: list[tuple[int, int]], expected_ns: list[int]
) -> None:
    stamps = stamps_of([[10, 50], [20, 60], [30, 40]])
    times = repetition_times(
        stamps, counted_rows(planned_of(headline, (0, 1, 2), *pairs)), operations=4
    )
    assert times.tolist() == [ns / 4e9 for ns in expected_ns]


def test_only_the_ranks_that_a_shape_names_are_counted() -> None:
    planned = planned_of("max_over_ranks", (0, 2, 3))
    planned.shape = replace(planned.shape, ranks=(2, 3))
    assert counted_rows(planned) == (1, 2)


def test_an_unknown_headline_is_refused() -> None:
    with pytest.raises(ValueError, match="mean_over_ranks"):
        counted_rows(planned_of("mean_over_ranks", (0,)))


def test_a_straggler_shows_in_the_tail_and_not_in_the_mean_of_ranks() -> None:
    elapsed = default_rng(1).integers(990_000, 1_010_000, size=(4, 901))
    # 10 of 901: exactly 1 % would lie one rank above the nearest-rank p99
    elapsed[2, ::100] += 5_000_000
    times = repetition_times(stamps_of(elapsed.tolist()), range(4), 1)
    p99_s = summarise(times)["p99_s"]
    assert p99_s is not None and p99_s > 5.9e-3
    assert float(np.median(times)) == pytest.approx(1e-3, rel=0.02)
    assert elapsed.mean() == pytest.approx(1e6, rel=0.02)


def test_of_several_initiators_the_slowest_decides() -> None:
    stamps = stamps_of([[10, 50], [99, 99], [30, 40]])
    assert deciding_rows(stamps, (0, 2)).tolist() == [2, 0]
    stamps[2] += 1_000  # a rank that ends last need not have taken longest
    assert deciding_rows(stamps, (0, 2)).tolist() == [2, 0]
