"""Whether a soak is stable, from planted speeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from commbench.features.streams.stability import Stability, Stretch, stability_of

STEP_S = 0.1
HOUR = 36_000  # intervals


def judged(speeds: Sequence[float] | NDArray[np.float64]) -> Stability:
    """Of intervals of STEP_S with these speeds, the last one cut off and slow."""
    every = np.append(np.asarray(speeds, dtype=np.float64), 1e-3)
    busy_s = np.full(len(every), STEP_S)
    busy_s[-1] = STEP_S / 10
    found = stability_of(np.arange(len(every)) * STEP_S, every * busy_s, busy_s)
    assert found is not None
    return found


def noisy(count: int, sigma: float, seed: int = 0) -> NDArray[np.float64]:
    noise = np.random.default_rng(seed).normal(0, sigma, count)
    return np.asarray(937 * np.exp(noise), dtype=np.float64)


@pytest.mark.parametrize("sigma", [0.0, 0.001, 0.01, 0.018])
def test_noise_alone_is_stable_within_its_own_width(sigma: float) -> None:
    found = judged(noisy(HOUR, sigma))
    assert found.is_stable and found.within == pytest.approx(2.58 * sigma, rel=0.1, abs=1e-9)
    assert (found.begin_s, found.end_s) == pytest.approx((0, 3600))


def test_at_most_one_of_a_hundred_noisy_soaks_has_a_dip() -> None:
    dips = [judged(noisy(1000, sigma, seed)) for sigma in (0.03, 0.2) for seed in range(200)]
    assert sum(bool(each.slower or each.faster) for each in dips) <= 8
    assert not any(each.is_stable for each in dips), "though none is called stable"


@pytest.mark.parametrize(("share", "steps"), [(0.6, 3), (0.9, 20), (0.0, 1), (0.0, 40)])
def test_a_planted_dip_is_found_where_it_was(share: float, steps: int) -> None:
    speeds = noisy(HOUR, 0.01)
    speeds[8120 : 8120 + steps] *= share
    found = judged(speeds)
    (dip,) = found.slower
    assert (dip.begin_s, dip.end_s) == pytest.approx((812, 812 + steps * STEP_S))
    assert dip.share == pytest.approx(share, rel=0.05, abs=1e-6)
    assert not found.faster and found.within < 0.03 and not found.is_stable


def test_a_dip_that_noise_cuts_in_pieces_is_one() -> None:
    speeds = noisy(HOUR, 0.01)
    speeds[1000:2000] *= 0.93
    (dip,) = judged(speeds).slower
    assert (dip.begin_s, dip.end_s) == pytest.approx((100, 200), abs=0.3)


@pytest.mark.parametrize("begin", [0.5, 0.7, 0.9])
def test_a_throttled_end_is_a_dip_until_the_end(begin: float) -> None:
    """As of an instance whose burst is used up."""
    speeds = noisy(HOUR, 0.01)
    speeds[int(begin * HOUR) :] *= 0.8
    (dip,) = judged(speeds).slower
    assert (dip.begin_s, dip.end_s) == pytest.approx((3600 * begin, 3600), rel=1e-3)


def test_what_was_faster_for_the_shorter_time_is_said_as_that() -> None:
    speeds = noisy(HOUR, 0.01)
    speeds[12_000:18_000] *= 1.25
    found = judged(speeds)
    (burst,) = found.faster
    assert (burst.begin_s, burst.end_s, burst.share) == pytest.approx((1200, 1800, 1.3), rel=0.02)
    assert not found.slower


@pytest.mark.parametrize(("ramp_s", "begin_s"), [(1.1, 1.1), (900.0, 0.0)])
def test_a_ramp_is_left_out_but_a_slow_quarter_is_none(ramp_s: float, begin_s: float) -> None:
    speeds = noisy(HOUR, 0.001)
    speeds[: round(ramp_s / STEP_S)] *= 0.5
    found = judged(speeds)
    assert found.begin_s == pytest.approx(begin_s) and found.is_stable is (begin_s > 0)
    assert [each.end_s for each in found.slower] == ([] if begin_s else [pytest.approx(900)])


def test_a_slow_drift_is_not_stable() -> None:
    drift = judged(noisy(HOUR, 0.001) * np.linspace(1, 0.8, HOUR))
    assert not drift.is_stable
    slow = judged(noisy(HOUR, 0.001) * np.linspace(1, 0.98, HOUR))
    assert slow.is_stable and slow.within == pytest.approx(0.01, rel=0.2)


def test_two_levels_of_equal_length_are_a_dip() -> None:
    found = judged([1.0] * 50 + [0.5] * 50)
    assert found.slower == (Stretch(pytest.approx(5.0), pytest.approx(10.0), 0.5),)
    assert found.within == 0


def test_a_few_intervals_say_nothing() -> None:
    steps = np.arange(20.0)
    assert stability_of(steps, steps + 1, np.ones(20)) is None
