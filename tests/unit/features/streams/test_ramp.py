"""How a rate rises, from planted ramps."""

from __future__ import annotations

import numpy as np
import pytest

from commbench.features.streams.ramp import Ramp, ramp_of

STEP_S = 0.1


def ramp(rates: list[float], last_s: float = STEP_S) -> Ramp:
    busy_s = np.full(len(rates), STEP_S)
    busy_s[-1] = last_s
    found = ramp_of(np.arange(len(rates)) * STEP_S, np.array(rates) * busy_s, busy_s)
    assert found is not None
    return found


def test_a_staircase_has_the_rate_of_its_last_step() -> None:
    """The note's: full speed after 1.1 s of 2 s."""
    stairs = ramp([323.0] * 4 + [609.7] + [721.0] * 5 + [877.0] + [937.0] * 9)
    assert stairs.end == pytest.approx(937)
    assert stairs.full_speed_s == pytest.approx(1.1)
    assert stairs.first_second == pytest.approx((4 * 323 + 609.7 + 5 * 721) / 10)
    assert stairs.least == pytest.approx(937)


def test_the_mean_is_all_that_moved_over_the_whole_time() -> None:
    """With the time in which nothing was measured, and with the last interval."""
    moved, busy_s = np.array([[60.0, 60.0, 30.0], [0.1, 0.05, 0.02]])
    found = ramp_of(np.arange(3) * STEP_S, moved, busy_s)
    assert found is not None and found.mean == pytest.approx(150 / 0.22)


@pytest.mark.parametrize("ramp_s", [0.0, 0.4, 1.5, 1.6])
def test_the_end_is_not_the_median_of_all(ramp_s: float) -> None:
    slow = round(ramp_s / STEP_S)
    found = ramp([721.0] * slow + [937.0] * (20 - slow))
    assert found.end == pytest.approx(937)
    assert found.full_speed_s == pytest.approx(ramp_s)


def test_a_rate_that_still_rises_has_not_reached_full_speed() -> None:
    rising = ramp([50.0 * number for number in range(1, 21)])
    assert (rising.full_speed_s, rising.least) == (None, None)


def test_one_fast_interval_is_not_full_speed() -> None:
    assert ramp([1.0] + [0.4] * 5 + [1.0] * 20).full_speed_s == pytest.approx(0.6)


def test_a_last_interval_that_was_cut_off_is_not_judged() -> None:
    assert ramp([1.0] * 10 + [0.1], last_s=0.01).least == pytest.approx(1.0)


def test_what_is_hardly_longer_than_a_second_has_no_first_one() -> None:
    assert ramp([1.0] * 14).first_second is None
    assert ramp([1.0] * 16).first_second == pytest.approx(1.0)


@pytest.mark.parametrize(("step_s", "first"), [(0.45, 1.5), (1.0, 4.0), (1.2, None), (2.0, None)])
def test_the_first_second_has_the_intervals_that_end_within_it(
    step_s: float, first: float | None
) -> None:
    begins_s = np.arange(5) * step_s
    rates = np.array([1.0, 2.0, 4.0, 4.0, 4.0] if step_s < 1 else [4.0, 8.0, 8.0, 8.0, 8.0])
    found = ramp_of(begins_s, rates * step_s, np.full(5, step_s))
    assert found is not None
    assert found.first_second == (first if first is None else pytest.approx(first))


def test_few_intervals() -> None:
    assert ramp_of(*np.zeros((3, 0))) is None
    assert (ramp([2.0]).end, ramp([2.0]).full_speed_s) == (2.0, None)
    assert ramp([2.0, 2.0]).full_speed_s == 0.0
