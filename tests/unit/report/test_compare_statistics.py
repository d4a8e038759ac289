"""The bootstrap, the verdict and the second opinion, against planted truth and published values."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.report.compare_statistics import (
    Launches,
    Ratio,
    bootstrap,
    holm,
    mann_whitney,
    missing_launches,
    noise,
    resampled_medians,
    verdict,
)

DELTA = 0.02
TRIALS = 200


def launches(rng: np.random.Generator, count: int, effect: float, shift: float, repetitions: int = 0) -> Launches:
    """Medians around 1 ms with a launch effect; with repetitions, medians of series with 5 % noise in each launch."""
    levels = 1e-3 * np.exp(shift + rng.normal(0, effect, count))
    if not repetitions:
        return Launches(levels)
    series = levels[:, None] * np.exp(rng.normal(0, 0.05, (count, repetitions)))
    return Launches(np.median(series, axis=1), tuple(series), (float(repetitions),) * count)


def verdicts(count: int, effect: float, shift: float, repetitions: int = 0, paired: bool = False) -> list[str]:
    rng = np.random.default_rng(count)
    sides = [
        (launches(rng, count, effect, 0.0, repetitions), launches(rng, count, effect, shift, repetitions))
        for _ in range(TRIALS)
    ]
    return [verdict(bootstrap(base, new, rng, paired, draws=1000), DELTA) for base, new in sides]


@pytest.mark.parametrize(
    ("count", "effect", "repetitions", "paired"),
    [(4, 0.02, 0, False), (10, 0.02, 0, False), (10, 0.02, 101, False), (10, 0.02, 0, True), (4, 0.1, 0, False)],
)
def test_equal_sides_are_called_different_in_at_most_5_percent(
    count: int, effect: float, repetitions: int, paired: bool
) -> None:
    found = verdicts(count, effect, 0.0, repetitions, paired)
    assert found.count("FASTER") + found.count("SLOWER") <= 0.05 * TRIALS


@pytest.mark.parametrize("repetitions", [0, 101])
def test_a_shift_of_10_percent_is_found_with_10_launches(repetitions: int) -> None:
    assert verdicts(10, 0.02, math.log(1.1), repetitions).count("SLOWER") >= 0.95 * TRIALS
    assert verdicts(10, 0.02, -math.log(1.1), repetitions).count("FASTER") >= 0.95 * TRIALS


def test_quiet_equal_sides_are_the_same() -> None:
    assert verdicts(10, 0.002, 0.0).count("SAME") >= 0.95 * TRIALS


def test_pooling_the_repetitions_of_one_launch_would_find_what_is_not_there() -> None:
    """Why launches are resampled: with the repetitions alone, launch effects pass as changes."""
    rng = np.random.default_rng(0)
    pairs = [(launches(rng, 1, 0.05, 0.0, 501), launches(rng, 1, 0.05, 0.0, 501)) for _ in range(TRIALS)]
    found = [verdict(bootstrap(base, new, rng, draws=300), DELTA) for base, new in pairs]
    assert found.count("FASTER") + found.count("SLOWER") > 0.4 * TRIALS


def test_repetitions_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    noisy = launches(rng, 5, 0.001, 0.0, 11), launches(rng, 5, 0.001, 0.0, 11)
    flat = bootstrap(Launches(noisy[0].medians), Launches(noisy[1].medians), np.random.default_rng(2))
    deep = bootstrap(*noisy, np.random.default_rng(2))
    assert deep.value == flat.value
    assert math.log(deep.high / deep.low) > 1.2 * math.log(flat.high / flat.low)


def test_pairs_take_away_what_both_sides_share() -> None:
    rng = np.random.default_rng(3)
    drift = np.exp(np.linspace(0, 0.5, 10))
    base, new = Launches(drift), Launches(1.05 * drift * np.exp(rng.normal(0, 0.002, 10)))
    assert verdict(bootstrap(base, new, rng), DELTA) == "UNDECIDED"
    assert verdict(bootstrap(base, new, rng, paired=True), DELTA) == "SLOWER"


def test_a_resampled_median_is_distributed_like_that_of_drawn_repetitions() -> None:
    rng = np.random.default_rng(4)
    series = rng.exponential(size=51)
    drawn = np.median(series[rng.integers(51, size=(20_000, 51))], axis=1)
    quick = resampled_medians(series, 51, 20_000, rng)
    quantiles = [5, 25, 50, 75, 95]
    assert np.percentile(quick, quantiles) == pytest.approx(np.percentile(drawn, quantiles), rel=0.05)
    assert np.ptp(resampled_medians(series, 5, 5000, rng)) > np.ptp(quick)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.03, 1.20, "SLOWER"),
        (0.80, 0.97, "FASTER"),
        (0.99, 1.01, "SAME"),
        (1.00, 1.03, "UNDECIDED"),
        (0.90, 1.10, "UNDECIDED"),
        (1.01, 1.019, "SAME"),
        (1 / 1.021, 1 / 1.0201, "FASTER"),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, word: str) -> None:
    assert verdict(Ratio(math.sqrt(low * high), low, high), DELTA) == word


@given(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.001, 0.2))
def test_exchanged_sides_exchange_the_verdict(first: float, second: float, delta: float) -> None:
    low, high = sorted((first, second))
    other = {"SLOWER": "FASTER", "FASTER": "SLOWER"}
    word = verdict(Ratio(1.0, low, high), delta)
    assert verdict(Ratio(1.0, 1 / high, 1 / low), delta * (1 - 1e-12)) in (other.get(word, word), "UNDECIDED")


def test_missing_launches_follow_the_square_root() -> None:
    half = 0.04  # at 4 launches; the gap to the threshold is half of it
    near = math.exp(math.log1p(DELTA) + half / 2)
    found = Ratio(near, near * math.exp(-half), near * math.exp(half))
    assert missing_launches(found, DELTA, 4) in (12, 13)  # 16 in all, but for rounding
    assert missing_launches(Ratio(1 + DELTA, 0.9, 1.2), DELTA, 4) is None
    assert missing_launches(Ratio(1 + DELTA + 1e-6, 0.9, 1.2), DELTA, 4) is None
    assert missing_launches(Ratio(1.5, 1.01, 1.6), DELTA, 50) == 1


def test_the_noise_of_equal_launches_grows_with_their_effect() -> None:
    rng = np.random.default_rng(5)
    quiet, loud = (noise(launches(rng, 20, effect, 0.0).medians, rng) for effect in (0.01, 0.1))
    assert 0.002 < quiet < 0.03 < loud < 0.3
    assert noise(np.ones(4), rng) == 0.0


# ---------------------------------------------------------------- second opinion


@pytest.mark.parametrize(
    ("first", "second", "p_value"),
    [
        ([19, 22, 16, 29, 24], [20, 11, 17, 12], 1 / 9),  # the example of scipy.stats.mannwhitneyu, U = 17
        ([1, 2, 3, 4], [5, 6, 7, 8], 2 / 70),
        ([1, 2, 3], [4, 5, 6], 2 / 20),
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
        ([1], [2], 1.0),
        ([5, 5, 5, 5], [5, 5, 5, 5], 1.0),
    ],
)
def test_mann_whitney_has_the_known_values(first: list[float], second: list[float], p_value: float) -> None:
    assert mann_whitney(np.array(first, float), np.array(second, float)) == pytest.approx(p_value)
    assert mann_whitney(np.array(second, float), np.array(first, float)) == pytest.approx(p_value)


def counted(first: list[int], second: list[int]) -> Fraction:
    """By its definition: the share of all divisions whose count of wins is as far out, twice the smaller tail."""
    values = first + second

    def wins(chosen: tuple[int, ...]) -> Fraction:
        others = [values[index] for index in range(len(values)) if index not in chosen]
        mine = [values[index] for index in chosen]
        return sum((Fraction((a > b) * 2 + (a == b), 2) for a in mine for b in others), Fraction(0))

    seen = wins(tuple(range(len(first))))
    every = [wins(chosen) for chosen in itertools.combinations(range(len(values)), len(first))]
    tails = sum(one <= seen for one in every), sum(one >= seen for one in every)
    return min(Fraction(1), Fraction(2 * min(tails), len(every)))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_mann_whitney_counts_all_divisions_also_with_ties(first: list[int], second: list[int]) -> None:
    exact = mann_whitney(np.array(first, float), np.array(second, float))
    assert exact == pytest.approx(float(counted(first, second)))


def test_the_normal_limit_continues_the_exact_values() -> None:
    rng = np.random.default_rng(6)
    first, second = rng.normal(0, 1, 30), rng.normal(0.5, 1, 30)
    exact = mann_whitney(first, second)
    assert mann_whitney(np.append(first, 0.25), second) == pytest.approx(exact, rel=0.25)
    assert mann_whitney(np.ones(40), np.ones(40)) == 1.0
    assert mann_whitney(np.arange(40.0), np.arange(40.0) + 100) < 1e-12


def test_holm_has_the_known_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_p_nor_changes_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    by_p = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert by_p == sorted(by_p)
