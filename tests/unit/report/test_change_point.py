"""Since when a series is slower or faster."""

from __future__ import annotations

import numpy as np

from commbench.report.change_point import MOST_SEARCHED, last_change


def test_a_step_begins_where_it_was_planted() -> None:
    rng = np.random.default_rng(1)
    for after in (1, 2, 5, 20):
        medians = 1e-5 * rng.lognormal(0, 0.02, 30 + after)
        medians[30:] *= 1.2
        point = last_change(medians, slower=True)
        assert point.first == 30
        assert 1.1 < point.ratio < 1.3


def test_a_case_that_got_faster_is_searched_as_well() -> None:
    medians = np.array([10.0, 10.1, 9.9, 10.0, 8.0, 8.1])
    point = last_change(medians, slower=False)
    assert (point.first, round(point.ratio, 2)) == (4, 0.8)


def test_one_disturbed_run_is_no_beginning() -> None:
    medians = np.array([10.0, 10.1, 15.0, 9.9, 10.0, 10.1, 9.9, 12.0, 12.1])
    assert last_change(medians, slower=True).first == 7


def test_a_step_in_the_other_direction_is_not_the_beginning() -> None:
    """The machine became faster first, by more, and then slower."""
    medians = np.array([20.0, 20.0, 20.0, 10.0, 10.0, 10.0, 10.0, 10.0, 12.0])
    assert last_change(medians, slower=True).first == 8


def test_runs_of_long_ago_are_not_searched() -> None:
    medians = np.full(MOST_SEARCHED + 300, 10.0)
    medians[100:] = 11.0
    medians[-2:] = 13.0
    assert last_change(medians, slower=True).first == medians.size - 2
