"""Since when a series is slower or faster, and whether its last launches are so together."""

from __future__ import annotations

import numpy as np

from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.cluster.watch.change_point import (
    MOST_SEARCHED,
    last_change,
    lasting_change,
)
from commbench.stats.series import Series
from commbench.stats.thresholds import DECIDING_LAUNCHES

RISK = 1e-3
TURNS_A_DAY = 4


def test_a_step_begins_where_it_was_planted() -> None:
    rng = np.random.default_rng(1)
    for after in (1, 2, 5, 20):
        medians = 1e-5 * rng.lognormal(0, 0.02, 30 + after)
        medians[30:] *= 1.2
        point = last_change(medians, "SLOWER")
        assert point.first == 30
        assert 1.1 < point.ratio < 1.3


def test_a_case_that_got_faster_is_searched_as_well() -> None:
    medians = np.array([10.0, 10.1, 9.9, 10.0, 8.0, 8.1])
    point = last_change(medians, "FASTER")
    assert (point.first, round(point.ratio, 2)) == (4, 0.8)


def test_one_disturbed_run_is_no_beginning() -> None:
    medians = np.array([10.0, 10.1, 15.0, 9.9, 10.0, 10.1, 9.9, 12.0, 12.1])
    assert last_change(medians, "SLOWER").first == 7


def test_a_step_in_the_other_direction_is_not_the_beginning() -> None:
    """The machine became faster first, by more, and then slower."""
    medians = np.array([20.0, 20.0, 20.0, 10.0, 10.0, 10.0, 10.0, 10.0, 12.0])
    assert last_change(medians, "SLOWER").first == 8


def test_runs_of_long_ago_are_not_searched() -> None:
    medians = np.full(MOST_SEARCHED + 300, 10.0)
    medians[100:] = 11.0
    medians[-2:] = 13.0
    assert last_change(medians, "SLOWER").first == medians.size - 2


# ---------------------------------------------------------------- many launches together


def launches_of_logs(logs: Series) -> list[HealthyLaunch]:
    return [
        HealthyLaunch(
            1e-5 * float(np.exp(log)), f"run{number:04}", "n1", str(number // TURNS_A_DAY)
        )
        for number, log in enumerate(logs)
    ]


def fresh_of(*medians_s: float) -> list[HealthyLaunch]:
    """Of the day of the last one of 60 launches."""
    return [HealthyLaunch(each, "fresh", "n1", str(59 // TURNS_A_DAY)) for each in medians_s]


def test_a_small_shift_shows_in_many_launches_and_in_no_single_one() -> None:
    """Of two standard deviations: 20 series of which 10 launches are after the shift show hardly
    any change with the first of them, and nearly all with all."""
    rng = np.random.default_rng(11)
    shown = {1: 0, 20: 0}
    for _ in range(20):
        logs = 0.05 * rng.standard_normal(80)
        logs[60:] += 0.10
        for after in shown:
            change = lasting_change(launches_of_logs(logs[: 60 + after]), RISK, 0.02)
            shown[after] += change is not None
            assert change is None or change.verdict == "SLOWER"
    assert shown[1] == 0
    assert shown[20] >= 17


def test_launches_without_a_change_show_none() -> None:
    """The last 100 launches of 5 series of each kind, one after the other: the risk of each look is
    one in a thousand, and looks at the same launches are alike."""
    shown = 0
    rng = np.random.default_rng(12)
    for _ in range(5):
        kinds = (
            0.05 * rng.standard_normal(160),
            0.05 * rng.exponential(size=160),
            0.05 * rng.standard_t(3, 160),
        )
        for logs in kinds:
            launches = launches_of_logs(logs)
            looks = [lasting_change(launches[:end], RISK, 0.0) for end in range(60, 160, 4)]
            shown += any(look is not None for look in looks)
    assert shown <= 1


def test_days_that_differ_are_no_change() -> None:
    """All launches of a day are alike: the last 12 are three days, not twelve launches."""
    rng = np.random.default_rng(13)
    shown = 0
    for _ in range(20):
        logs = np.repeat(0.05 * rng.standard_normal(30), TURNS_A_DAY)
        shown += lasting_change(launches_of_logs(logs), RISK, 0.02) is not None
    assert shown <= 1


def test_a_few_disturbed_launches_are_no_lasting_change() -> None:
    rng = np.random.default_rng(14)
    logs = 0.02 * rng.standard_normal(60)
    logs[[55, 58]] += 1.5
    assert lasting_change(launches_of_logs(logs), RISK, 0.02) is None


def test_what_is_less_than_delta_is_no_lasting_change() -> None:
    logs = 1e-4 * np.random.default_rng(15).standard_normal(60)
    logs[40:] -= 0.015
    assert lasting_change(launches_of_logs(logs), RISK, 0.02) is None
    change = lasting_change(launches_of_logs(logs), RISK, 0.01)
    assert change is not None
    assert change.verdict == "FASTER"
    assert change.is_shown_by(fresh_of(0.98e-5, 0.99e-5), RISK)
    assert not change.is_shown_by(fresh_of(0.98e-5, 1e-5), RISK)


def test_nothing_is_told_of_few_launches() -> None:
    logs = np.zeros(DECIDING_LAUNCHES + 2)
    logs[DECIDING_LAUNCHES:] = 1.0
    assert lasting_change(launches_of_logs(logs), RISK, 0.02) is None
