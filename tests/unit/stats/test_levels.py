"""What days explain of a difference: planted levels, and known values of Student's distribution."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from commbench.stats.levels import (
    GroupedLaunches,
    LevelTest,
    level_test,
    spread,
    student_p,
    student_quantile,
)
from commbench.stats.thresholds import USUAL_LEVELS


def side(levels: list[float], name: str, launches: int = 2) -> GroupedLaunches:
    """Launches of days with these levels, which vary by nothing else."""
    days = [f"{name}{day}" for day in range(len(levels)) for _ in range(launches)]
    return GroupedLaunches(np.exp(np.repeat(levels, launches)), days)


def difference(base: GroupedLaunches, new: GroupedLaunches) -> LevelTest:
    test = level_test(base, new)
    assert test is not None
    return test


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042)]
)
def test_quantiles_are_those_of_tables(degrees: int, quantile: float) -> None:
    assert student_quantile(0.05, degrees) == pytest.approx(quantile, abs=1e-3)
    assert student_p(-quantile, degrees) == pytest.approx(0.05, abs=1e-4)


def test_launches_of_the_same_days_have_no_level_between_them() -> None:
    assert level_test(side([0.0, 0.1], "day"), side([0.2, 0.3], "day")) is None


def test_one_day_is_taken_to_differ_from_another_by_what_is_usual() -> None:
    test = difference(side([0.0], "base"), side([0.1], "new"))
    assert test.usual == pytest.approx(np.sqrt(2) * USUAL_LEVELS)
    assert (test.between, test.degrees) == (0.0, 0)
    assert test.p_value == pytest.approx(2 * NormalDist().cdf(-0.1 / test.usual))
    assert test.distance(test.p_value) == pytest.approx(0.1)


def test_many_days_show_how_much_they_differ_and_one_disturbed_day_hardly_counts() -> None:
    rng = np.random.default_rng(1)
    levels = list(rng.normal(0, 0.01, 40))
    steady = difference(side(levels, "base"), side([0.05], "new"))
    disturbed = difference(side([*levels[1:], 1.0], "base"), side([0.05], "new"))
    assert steady.between == pytest.approx(0.01, rel=0.3)
    assert disturbed.between == pytest.approx(steady.between, rel=0.2)
    assert steady.p_value < 1e-3
    assert spread(np.array([0.0, 0.0, 0.0])) == 0


def test_a_disturbed_day_among_a_few_new_ones_is_no_difference() -> None:
    rng = np.random.default_rng(2)
    base = side(list(rng.normal(0, 0.01, 20)), "base")
    assert difference(base, side([0.0, 0.5, 0.01], "new")).p_value > 0.01


def test_a_disturbed_launch_of_two_moves_the_level_of_its_day_and_is_no_difference() -> None:
    base = side([0.0, 0.01, 0.02, 0.03], "base")
    days = ["new0", "new0", "new1", "new1"]
    disturbed = GroupedLaunches(np.exp([0.015, 0.5, 0.015, 0.015]), days)
    assert disturbed.levels.tolist() == pytest.approx([0.2575, 0.015])
    assert difference(base, disturbed).log_ratio == pytest.approx(0.0)
    slower = GroupedLaunches(np.exp([0.3, 0.5, 0.3, 0.3]), days)
    assert difference(base, slower).log_ratio == pytest.approx(0.3 - 0.015), "all three are far"


@pytest.mark.parametrize("days", [1, 4, 12, 30])
def test_days_without_a_change_are_as_far_apart_as_the_risk_says(days: int) -> None:
    """Days 3 % apart, launches of a day 1 %."""
    rng = np.random.default_rng(days)
    trials, risk = 600, 0.02
    seen = 0
    for _ in range(trials):
        levels = rng.normal(0, 0.03, days + 1)
        times = np.exp(np.repeat(levels, 2) + rng.normal(0, 0.01, 2 * levels.size))
        names = [str(day) for day in range(days + 1) for _ in range(2)]
        base, new = (
            GroupedLaunches(times[part], names[part]) for part in (slice(-2), slice(-2, None))
        )
        seen += difference(base, new).p_value <= risk
    assert seen <= 26  # of 600 at 2 %: more has a probability of 0.1 %
