"""A value with its confidence interval."""

from __future__ import annotations

import math

import pytest

from commbench.core.units import format_number
from commbench.stats.interval import Interval, of_formula


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(0.165, 0.160, 0.168), "0.165 ±3%"),
        (Interval(162, 130, 2019), "?162 -20 +1146%"),
        (Interval(100, 99.8, 100.1), "100 ±0.2%"),
        (Interval(100, 98.4, 100.1), "100 ±2%"),
        (Interval(1.035, 0.997, 1.044), "1.03 -4 +0.9%"),  # within 5 %: a threshold may be between
        (Interval(100, 98, 104), "100 ±4%"),
        (Interval(100, 90, 115), "~100 ±15%"),
        (Interval(5, 5, 5), "5.00 ±0%"),
        (Interval(2.5, 2.5000000000000004, 2.4999999999999996), "2.50 ±0%"),
        (Interval(-4, -5, -2), "?-4.00 ±50%"),
        (Interval(1.5, n=2), "?1.50 (n=2)"),
        (Interval(0, 0, 0), "0 ±0%"),
    ],
)
def test_the_width_stands_beside_the_value(interval: Interval, text: str) -> None:
    assert interval.text(format_number) == text


@pytest.mark.parametrize(
    ("farthest", "certainty"), [(1.05, ""), (1.06, "~"), (1.29, "~"), (1.31, "?"), (math.inf, "?")]
)
def test_the_farther_end_says_what_a_value_is_worth(farthest: float, certainty: str) -> None:
    assert Interval(1.0, 0.99, farthest).certainty == certainty


def test_a_value_without_an_interval_has_an_infinite_width() -> None:
    alone = Interval(3.0, n=4)
    assert not alone.is_known
    assert alone.half_width == math.inf
    assert alone.holds(1e9)


def test_a_formula_takes_its_extremes_from_those_of_its_inputs() -> None:
    distance = Interval(100.0, 90.0, 120.0, level=0.95, n=6, of="visits")
    duration = Interval(10.0, 8.0, 10.0, level=0.75, n=3, of="visits")
    speed = of_formula(lambda way, time: way / time, distance, duration)
    assert (speed.value, speed.low, speed.high) == (10.0, 9.0, 15.0)
    assert (speed.level, speed.n) == (0.75, 3)
    assert not of_formula(lambda way, time: way / time, distance, Interval(10.0)).is_known


def test_sums_and_differences_hold_all_that_is_possible() -> None:
    first = Interval(5.0, 4.0, 6.0)
    second = Interval(1.0, 0.5, 2.0)
    assert (first + second).high == 8.0
    assert (first - second).low == 2.0
    assert (-2 * first).low == -12.0
