"""Prediction intervals of healthy launches: the formula, groups of launches, and how often it is
wrong."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest

from commbench.cluster.baseline_store import HealthyLaunch
from commbench.cluster.prediction import f_quantile, predictions, skewed_limit, t_quantile


def launches(
    times_s: Sequence[float], days: Sequence[object] = (), hosts: Sequence[object] = ()
) -> list[HealthyLaunch]:
    return [
        HealthyLaunch(
            time_s,
            f"run {number}",
            str(hosts[number]) if hosts else "n1",
            str(days[number]) if days else "2026-01-01",
        )
        for number, time_s in enumerate(times_s)
    ]


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [  # from printed tables of Student's t
        (0.95, 1, 6.3138),
        (0.995, 1, 63.657),
        (0.975, 4, 2.7764),
        (0.975, 9, 2.2622),
        (0.9995, 20, 3.8495),
        (0.95, 120, 1.6577),
    ],
)
def test_quantiles_of_student_t_are_those_of_the_tables(
    probability: float, degrees: float, quantile: float
) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(quantile, rel=1e-4)
    assert t_quantile(1 - probability, degrees) == pytest.approx(-quantile, rel=1e-4)


@pytest.mark.parametrize(
    ("risk", "numerator", "denominator", "quantile"),
    [(0.05, 2, 10, 4.1028), (0.01, 4, 8, 7.0061), (0.001, 10, 20, 5.0752)],
)
def test_quantiles_of_fisher_f_are_those_of_the_tables(
    risk: float, numerator: int, denominator: int, quantile: float
) -> None:
    assert f_quantile(risk, numerator, denominator) == pytest.approx(quantile, rel=1e-4)


@pytest.mark.parametrize(("healthy", "new"), [(3, 1), (5, 1), (10, 1), (10, 5)])
def test_skewed_launches_are_beyond_their_limit_no_more_often_than_stated(
    healthy: int, new: int
) -> None:
    rng = np.random.default_rng([healthy, new])
    trials = 2000
    beyond = 0
    for _ in range(trials):
        stored, future = np.split(0.1 * rng.exponential(size=healthy + new), [healthy])
        beyond += future.mean() > skewed_limit(launches(np.exp(stored).tolist()), new, 0.01)
    assert beyond <= 20 + 3 * math.sqrt(20)


def test_one_future_launch_lies_within_t_times_s_times_the_root_of_1_plus_1_over_n() -> None:
    times_s = [1.0e-5, 1.1e-5, 1.05e-5, 0.97e-5, 1.02e-5]
    logs = list(map(math.log, times_s))
    (way,) = predictions(launches(times_s), launches([1.2e-5]))
    assert way.shift == pytest.approx(math.log(1.2e-5) - statistics.fmean(logs))
    expected = 2.1318 * statistics.stdev(logs) * math.sqrt(1 + 1 / 5)
    assert way.half_width(0.05) == pytest.approx(expected, rel=1e-4)


def test_the_mean_of_several_future_launches_varies_less() -> None:
    healthy = launches([1.0, 1.1, 1.05, 0.97, 1.02])
    (one,) = predictions(healthy, launches([1.0]))
    (four,) = predictions(healthy, launches([1.0] * 4))
    assert four.error / one.error == pytest.approx(math.sqrt((1 / 4 + 1 / 5) / (1 + 1 / 5)))


def test_launches_of_a_day_that_are_alike_do_not_narrow_what_days_differ_by() -> None:
    by_day = {1: 1.0, 2: 1.1, 3: 0.95, 4: 1.06}
    days = [day for day in by_day for _ in range(5)]
    rng = np.random.default_rng(0)
    times_s = [by_day[day] * float(rng.lognormal(0, 0.002)) for day in days]
    all_alike, of_days = predictions(launches(times_s, days), launches([1.0] * 5))
    means = [
        statistics.fmean(math.log(times_s[5 * at + each]) for each in range(5)) for at in range(4)
    ]
    assert of_days.error == pytest.approx(statistics.stdev(means) * math.sqrt(1 + 1 / 4))
    assert of_days.degrees == pytest.approx(3)
    assert of_days.half_width(0.01) > 2 * all_alike.half_width(0.01)


def test_days_that_do_not_differ_cost_little() -> None:
    rng = np.random.default_rng(1)
    days = [day for day in range(10) for _ in range(4)]
    ratios = []
    for _ in range(50):
        times_s = rng.lognormal(0, 0.05, 40).tolist()
        all_alike, of_days = predictions(launches(times_s, days), launches([1.0]))
        ratios.append(of_days.half_width(0.01) / all_alike.half_width(0.01))
    assert statistics.median(ratios) < 1.15


def test_each_grouping_with_several_groups_has_a_prediction() -> None:
    healthy = launches([1.0, 1.1, 1.2, 1.1], days=[1, 1, 2, 2], hosts=["a", "b", "a", "b"])
    ways = predictions(healthy, launches([1.0]))
    assert [way.grouping for way in ways] == ["launches", "days", "sets of hosts"]


@pytest.mark.parametrize(("days", "day_spread"), [(1, 0.0), (4, 0.0), (4, 0.05), (10, 0.05)])
@pytest.mark.parametrize("risk", [0.05, 0.001])
def test_a_healthy_launch_is_beyond_the_limit_no_more_often_than_stated(
    days: int, day_spread: float, risk: float
) -> None:
    rng = np.random.default_rng([days, round(1000 * risk)])
    trials = 1500
    beyond = 0
    of_launch = np.repeat(range(days), 12 // days)
    for _ in range(trials):
        shifts = rng.normal(0, day_spread, days + 1)
        stored = np.exp(shifts[of_launch] + rng.normal(0, 0.02, of_launch.size))
        new = math.exp(shifts[days] + rng.normal(0, 0.02))
        ways = predictions(launches(stored.tolist(), of_launch.tolist()), launches([new], ["new"]))
        beyond += all(way.shift > way.half_width(risk) for way in ways)
    most = trials * risk + 3 * math.sqrt(trials * risk)  # three standard deviations of the count
    assert beyond <= most


def test_the_number_of_launches_that_decide_follows_from_the_spread() -> None:
    healthy = launches([1.00, 1.03, 0.97, 1.02, 0.98])
    (way,) = predictions(healthy, launches([1.0]))
    counts = [way.groups_needed(gap, 0.05) for gap in (0.1, 0.05, 0.02, 0.01, 0.001)]
    assert counts[-1] is None and counts[:-1] == sorted(map(int, filter(None, counts)))
    needed = counts[2]
    assert needed is not None
    half = t_quantile(0.95, needed - 1) * way.spread * math.sqrt(2 / needed)
    assert half <= 0.02 < half * math.sqrt(needed / (needed - 1)) * 1.2
