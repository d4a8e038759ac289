"""Two groups among the launches of a setting: planted ones are found, noise alone makes none."""

from __future__ import annotations

import numpy as np
import pytest

from commbench.stats.launch_groups import LaunchGroups, launch_groups

RUNS = 400
LAUNCHES = 10


@pytest.mark.parametrize("slow", [2, 4, 5, 8])
def test_planted_groups_are_found_with_their_numbers(slow: int) -> None:
    rng = np.random.default_rng(slow)
    found = 0
    for _ in range(RUNS):
        seconds = 1e-5 * rng.lognormal(0.0, 0.03, LAUNCHES)
        seconds[rng.permutation(LAUNCHES)[:slow]] *= 1.5
        groups = launch_groups(seconds.tolist())
        if groups is not None and groups.slow == slow:
            found += 1
            assert groups.factor == pytest.approx(1.5, rel=0.1)
    assert found > 0.95 * RUNS


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("noise", ["normal", "exponential", "heavy"])
def test_noise_alone_rarely_makes_two_groups(noise: str, spread: float) -> None:
    rng = np.random.default_rng(7)
    errors = {
        "normal": lambda: rng.normal(0.0, spread, LAUNCHES),
        "exponential": lambda: rng.exponential(spread, LAUNCHES),
        "heavy": lambda: spread * rng.standard_t(3, LAUNCHES),
    }[noise]
    alarms = sum(launch_groups(np.exp(errors()).tolist()) is not None for _ in range(RUNS))
    assert alarms <= 0.02 * RUNS


def test_few_launches_and_a_single_slow_one_are_no_groups() -> None:
    assert launch_groups([1.0, 1.0, 2.0, 2.0]) is None
    assert launch_groups([1.0, 1.01, 1.02, 1.01, 3.0]) is None
    assert launch_groups([1.0, 1.0, 1.0, 2.0, 2.0]) == LaunchGroups(2, 5, 2.0)
