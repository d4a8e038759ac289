"""How far launches may be from the healthy ones of a store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from watched_cases import RULE, STEADY, healthy_of

from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.stats.thresholds import DECIDING_LAUNCHES


def test_too_few_healthy_launches_have_no_range_and_no_verdict() -> None:
    few = STEADY.healthy[: DECIDING_LAUNCHES - 1]
    assert RULE.healthy_range(few, few) is None
    assert RULE.verdict(few, healthy_of(1.0)) == "UNDECIDED"


@pytest.mark.parametrize(
    ("medians_s", "verdict"),
    [([1.015e-5], "SAME"), ([1.025e-5], "SLOWER"), ([0.97e-5], "FASTER"), ([], "UNDECIDED")],
)
def test_what_is_less_than_delta_is_no_change(medians_s: list[float], verdict: str) -> None:
    """Also where all healthy launches took exactly the same time."""
    assert RULE.verdict(healthy_of(*[1e-5] * 8), healthy_of(*medians_s)) == verdict


def test_one_launch_in_the_healthy_range_is_enough_for_the_same() -> None:
    assert RULE.verdict(STEADY.healthy, healthy_of(1.3e-5, 1.3e-5, 1.005e-5)) == "SAME"
    assert RULE.verdict(STEADY.healthy, healthy_of(0.8e-5, 0.8e-5, 1.3e-5)) == "SAME"


def test_what_is_healthy_on_another_day_is_wider_by_what_days_differ() -> None:
    of_days = [
        HealthyLaunch(time_s * factor, f"run{day}", "node1", str(day))
        for day, time_s in enumerate([1.0e-5, 1.1e-5, 0.95e-5])
        for factor in (1.0, 1.001, 0.999)
    ]
    of_one_day = healthy_of(*(launch.median_s for launch in of_days))
    another_day = [replace(of_days[-1], day="another")]
    by_day = RULE.healthy_range(of_days, another_day)
    same_day = RULE.healthy_range(of_one_day, of_one_day[-1:])
    first_day = RULE.healthy_range(of_one_day, another_day)
    assert by_day is not None and same_day is not None and first_day is not None
    assert by_day.high > 1.03 * same_day.high
    assert first_day.high > 1.03 * same_day.high
    days = RULE.day_levels(of_days)
    assert days is not None and days.between == pytest.approx(0.08, rel=0.2)
