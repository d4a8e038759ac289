"""Slow parts among equal ones: found, and rarely named where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from loops import for_each

from commbench.stats.interval import Interval
from commbench.stats.outliers import slow_parts, spread_limit

CASES = 6


def times_of(log_s: np.ndarray, interval: float = 0.0) -> dict[int, Interval]:
    times_s = enumerate(np.exp(log_s).tolist())
    return {part: Interval(time_s, time_s * (1 - interval)) for part, time_s in times_s}


@pytest.mark.long
@for_each("parts", [5, 8, 64])
def test_at_most_one_in_a_hundred_healthy_suites_has_a_part_named(parts: int) -> None:
    random = np.random.default_rng(parts)
    runs = 1500
    # they differ so much that any excess matters: only the limit keeps them from being named
    named = sum(
        any(slow_parts(times_of(random.normal(0, 0.5, parts)), 0.1, CASES) for _ in range(CASES))
        for _ in range(runs)
    )
    assert named <= 0.01 * runs + 3 * np.sqrt(0.01 * runs)


@for_each("parts", [8, 64])
def test_a_part_that_takes_half_as_long_again_is_named_with_its_place(parts: int) -> None:
    random = np.random.default_rng(7)
    log_s = random.normal(0, 0.01, parts)
    log_s[3] += np.log(1.5)
    ((part, slow),) = slow_parts(times_of(log_s), 0.1, 1).items()
    assert (part, slow.place) == (3, 1)
    assert 1.45 < slow.ratio < 1.55


def test_a_difference_that_does_not_matter_or_is_not_sure_names_nobody() -> None:
    equal = np.zeros(16)
    equal[3] = np.log(1.05)
    assert slow_parts(times_of(equal), 0.1, 1) == {}
    equal[3] = np.log(1.3)
    assert len(slow_parts(times_of(equal), 0.1, 1)) == 1
    assert slow_parts(times_of(equal, interval=0.2), 0.1, 1) == {}


def test_four_parts_do_not_tell_which_is_slow() -> None:
    assert slow_parts(times_of(np.array([0.0, 0.0, 0.0, 1.0])), 0.1, 1) == {}
    assert len(slow_parts(times_of(np.array([0.0, 0.0, 0.0, 0.0, 1.0])), 0.1, 1)) == 1


def test_few_parts_need_a_larger_difference_than_many() -> None:
    assert spread_limit(5, 0.01) > spread_limit(8, 0.01) > spread_limit(64, 0.01) > 3
