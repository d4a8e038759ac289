"""The bounds of a quartile hold for any noise, and more noise takes more visits."""

from __future__ import annotations

import numpy as np
from loops import for_each
from simulated_cluster import NOISES, noise_of

from commbench.cluster.search.search_power import (
    FURTHER_VISITS,
    QUARTILE,
    Numbers,
    Power,
    bound_ranks,
)
from commbench.stats.thresholds import MISSED

EMPTY: Numbers = np.zeros(0)


def power_with(spread: float, noise: str = "normal") -> Power:
    values = noise_of(noise, spread, 20_000, np.random.default_rng(1))
    values -= np.quantile(values, QUARTILE)
    return Power(values, partners=15, widening=1.0, sure=0.06, slow=0.1, level=0.01)


@for_each("noise", NOISES)
def test_the_true_quartile_is_outside_of_its_bounds_as_rarely_as_said(noise: str) -> None:
    random = np.random.default_rng(2)
    truth = np.quantile(noise_of(noise, 1.0, 1_000_000, random), QUARTILE)
    ordered = np.sort(noise_of(noise, 1.0, 20_000 * 40, random).reshape(-1, 40), axis=1)
    low, high = bound_ranks(40, 0.05)
    assert np.mean(ordered[:, low] > truth) < 0.055
    assert np.mean(ordered[:, low + 1] > truth) > 0.05
    assert np.mean(ordered[:, high] < truth) < 2 * MISSED


def test_too_few_times_have_no_bounds() -> None:
    assert bound_ranks(3, 0.01) == (-1, -1)
    assert bound_ranks(20, 0.01)[0] == 0


def test_no_suspects_need_no_visits_and_more_noise_needs_more() -> None:
    assert power_with(0.02).needed(EMPTY, EMPTY) == 0
    visits = [power_with(spread).naming(0.1) for spread in (0.0, 0.02, 0.05, 1.0)]
    assert visits[0] == FURTHER_VISITS[0] < visits[2] < visits[3] == FURTHER_VISITS[-1]


def test_a_suspect_that_is_far_too_slow_needs_few_visits() -> None:
    far, near = np.array([0.7]), np.array([0.1])
    power = power_with(0.05)
    assert power.needed(far, far - 0.05) < power.needed(near, near - 0.05)


def test_a_run_sees_what_it_looks_for_unless_noise_hides_it() -> None:
    assert power_with(0.01).could_see(0) == np.expm1(0.1)
    assert power_with(0.3).could_see(0) > 0.15
