"""The one test of compare, ab, accept and watch: on intervals, and on planted changes."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from commbench.stats.interval import Interval
from commbench.stats.levels import spread
from commbench.stats.series import Series
from commbench.stats.verdict import (
    Comparison,
    Verdict,
    adjusted_p,
    compare_launches,
    suspect_ratio,
    verdict,
    verdicts,
)

MARGIN = 0.05


def launches(rng: np.random.Generator, sigma: float, count: int, factor: float = 1.0) -> Series:
    return factor * 1e-4 * rng.lognormal(0, sigma, count)


def comparison(low: float, high: float, suspect_from: float = math.inf) -> Comparison:
    ratio = Interval(math.sqrt(low * high), low, high, 0.95, 8, "launches")
    return Comparison(1.0, ratio.value, ratio, 0.001, suspect_from, (8, 8))


@pytest.mark.parametrize(
    ("low", "high", "p_adjusted", "word"),
    [
        (1.06, 1.20, 0.01, "SLOWER"),
        (1.06, 1.20, 0.06, "SUSPECT"),
        (1.03, 1.20, 0.01, "SLOWER"),
        (1.03, 1.20, 0.06, "UNDECIDED"),
        (1.01, 1.20, 0.01, "UNDECIDED"),
        (1.03, 1.06, 0.01, "UNDECIDED"),
        (1.03, 1.04, 0.01, "SAME"),
        (0.80, 0.97, 0.01, "FASTER"),
        (0.80, 0.97, 0.06, "UNDECIDED"),
        (0.99, 1.01, 1.00, "SAME"),
        (0.90, 1.10, 1.00, "UNDECIDED"),
    ],
)
def test_a_change_is_certain_large_and_no_trifle(
    low: float, high: float, p_adjusted: float, word: str
) -> None:
    assert verdict(comparison(low, high), p_adjusted, MARGIN) == word


def test_what_is_many_spreads_away_is_suspect_with_a_single_launch() -> None:
    base = np.array([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99])
    seen = compare_launches(base, np.array([1.2]), MARGIN)
    assert not seen.is_decidable and seen.p_value == 1.0
    assert verdicts([seen], MARGIN) == ["SUSPECT"]
    assert verdicts([compare_launches(base, np.array([1.04]), MARGIN)], MARGIN) == ["UNDECIDED"]
    assert verdicts([compare_launches(base[:2], np.array([9.0]), MARGIN)], MARGIN) == ["UNDECIDED"]


def test_a_disturbed_launch_hardly_widens_the_spread() -> None:
    rng = np.random.default_rng(1)
    times = launches(rng, 0.03, 12)
    disturbed = times.copy()
    disturbed[3] *= 5
    assert spread(np.log(disturbed)) < 1.5 * spread(np.log(times))
    assert spread(np.log(launches(rng, 0.03, 4000))) == pytest.approx(0.03, rel=0.05)


def test_launches_that_are_all_equal_are_suspect_from_the_margin_on() -> None:
    assert suspect_ratio(np.ones(8), 1, MARGIN) == pytest.approx(1 + MARGIN)


def test_p_is_corrected_for_the_cases_that_can_be_decided() -> None:
    cases = [comparison(1.1, 1.2), comparison(1.1, 1.2)]
    too_few = compare_launches(np.ones(8), np.ones(1), MARGIN)
    assert adjusted_p([*cases, too_few]) == pytest.approx([0.002, 0.002, 1.0])


# ---------------------------------------------------------------- planted changes


def shares(base: int, new: int, factor: float, trials: int = 150) -> Counter[Verdict]:
    """How often which verdict is given on a case of a suite of 20, with launches that vary by
    3 %."""
    rng = np.random.default_rng([base, new])
    alpha = 0.02 / 20  # as Holm's correction for the smallest of 20
    given: Counter[Verdict] = Counter()
    for _ in range(trials):
        seen = compare_launches(launches(rng, 0.03, base), launches(rng, 0.03, new, factor), MARGIN)
        given[verdict(seen, seen.p_value, MARGIN, alpha)] += 1
    return given


def test_a_loss_of_30_percent_is_seen_with_one_launch() -> None:
    assert shares(8, 1, 1.3)["SUSPECT"] >= 146  # 99 % of 150, less two standard deviations


def test_a_loss_of_10_percent_is_certain_with_eight_launches_of_each_side() -> None:
    assert shares(8, 8, 1.1)["SLOWER"] >= 130  # one of 20 cases is slower: 91 %


@pytest.mark.parametrize(("base", "new"), [(8, 1), (8, 8), (20, 8)])
def test_launches_without_a_change_are_not_slower(base: int, new: int) -> None:
    given = shares(base, new, 1.0)
    assert given["SLOWER"] == given["FASTER"] == 0
    assert given["SUSPECT"] <= 4
