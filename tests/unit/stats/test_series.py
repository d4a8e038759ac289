"""The numbers of a case: exact ranks, honest coverage, every way to stop, planted faults found and
noise left alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noisy_series import ar1_lognormal
from numpy.random import Generator, default_rng

from commbench.stats.series import (
    Z95,
    Series,
    drifting,
    effective_size,
    half_width,
    lag1,
    median_interval,
    mser5_cut,
    multimodal,
    percentile,
    steady,
    summarise,
    tukey_outliers,
)

seconds = st.floats(min_value=1e-7, max_value=10.0)
series = st.lists(seconds, min_size=1, max_size=80).map(np.array)
NOISE = ar1_lognormal(default_rng(3), 0.0, 1, 20_000)[0]  # median 1 ms, 10 % spread


def plain_interval(values: Series, z: float = Z95) -> tuple[float, float] | None:
    """As if the repetitions were independent."""
    return median_interval(values, z, effective=values.size)


# ---------------------------------------------------------------- properties


@given(series, st.randoms(use_true_random=False))
def test_order_does_not_matter_to_quantiles(values: Series, random: object) -> None:
    shuffled = values.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plain_interval(values) == plain_interval(shuffled)
    assert [percentile(values, p) for p in (0.9, 0.95)] == [
        percentile(shuffled, p) for p in (0.9, 0.95)
    ]
    assert summarise(values)["max_s"] == summarise(shuffled)["max_s"]


@given(series, st.booleans(), st.sampled_from([1.96, 2.576]))
def test_the_interval_brackets_the_median(values: Series, corrected: bool, z: float) -> None:
    interval = median_interval(values, z) if corrected else plain_interval(values, z)
    assert (interval is None) == (values.size < 6)
    if interval:
        assert values.min() <= interval[0] <= np.median(values) <= interval[1] <= values.max()


@given(series)
def test_the_correction_only_widens(values: Series) -> None:
    plain = plain_interval(values)
    corrected = median_interval(values)
    assert 1 <= effective_size(values) <= values.size
    if plain and corrected:
        assert corrected[0] <= plain[0] <= plain[1] <= corrected[1]


@given(series, st.integers(-20, 20))
def test_the_unit_does_not_matter(values: Series, exponent: int) -> None:
    before = summarise(values)
    after = summarise(values * 2.0**exponent)  # exact in binary
    assert after == {
        name: value if value is None else value * 2.0**exponent for name, value in before.items()
    }
    assert multimodal(values) == multimodal(values * 2.0**exponent)
    assert drifting(values) == drifting(values * 2.0**exponent)


@given(series, seconds)
def test_slower_everywhere_is_never_faster(values: Series, delay: float) -> None:
    before = summarise(values)
    after = summarise(values + delay)
    assert all(value is None or value <= after[name] for name, value in before.items())  # type: ignore[operator]


@given(series)
def test_a_summary_is_ordered(values: Series) -> None:
    summary = summarise(values)
    mean_s = summary.pop("mean_s")
    known = [value for value in summary.values() if value is not None]
    assert known == sorted(known) and mean_s is not None
    assert known[0] <= mean_s * (1 + 1e-9) and mean_s <= known[-1] * (1 + 1e-9)
    assert -1 - 1e-9 <= lag1(values) <= 1 + 1e-9


@pytest.mark.parametrize(("p", "n"), [(0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)])
def test_a_percentile_needs_enough_repetitions(p: float, n: int) -> None:
    assert percentile(np.arange(1.0, n), p) is None
    assert percentile(np.arange(1.0, n + 1), p) == math.ceil(p * n)


def test_nearest_rank_survives_binary_fractions() -> None:
    assert percentile(np.arange(1.0, 101), 0.07) == 7  # 0.07 * 100 > 7 in floating point


# ---------------------------------------------------------------- ranks and coverage


def alternating(n: int) -> Series:
    """1..n in an order without positive autocorrelation: small, large, small, large."""
    values = np.arange(1.0, n + 1)
    return np.concatenate(
        [
            np.ravel(np.column_stack([values[: n // 2], values[::-1][: n // 2]])),
            values[n // 2 : n - n // 2],
        ]
    )


@pytest.mark.parametrize(
    ("n", "z", "ranks"),
    [
        (5, 1.96, None),
        (6, 1.96, (1, 6)),
        (9, 1.96, (2, 8)),
        (100, 1.96, (40, 61)),
        (100, 2.576, (37, 64)),
        (7, 2.576, (1, 7)),  # no 99 % interval exists: all that is known
    ],
)
def test_exact_ranks(n: int, z: float, ranks: tuple[int, int] | None) -> None:
    assert median_interval(alternating(n), z) == ranks
    assert plain_interval(np.arange(1.0, n + 1), z) == ranks


def test_exact_and_normal_ranks_meet() -> None:
    exact, normal = (plain_interval(np.arange(1.0, n + 1)) for n in (200, 201))
    assert exact is not None and normal is not None
    assert abs(exact[0] - normal[0]) <= 1 and abs(exact[1] - normal[1]) <= 2


def test_a_series_that_only_wanders_has_no_better_interval_than_its_range() -> None:
    assert median_interval(np.linspace(1.0, 2.0, 50)) == (1.0, 2.0)


def test_fewer_than_six_independent_repetitions_have_their_range() -> None:
    values = np.arange(100.0)
    assert median_interval(values, effective=5.9) == (0.0, 99.0)
    assert median_interval(values, effective=6.0) == (8.0, 91.0)


def test_constant_series() -> None:
    values = np.full(40, 0.1)
    assert (effective_size(values), lag1(values), half_width(values)) == (40, 0.0, 0.0)
    assert not drifting(values) and not multimodal(values)


def test_half_width_is_infinite_where_nothing_is_known() -> None:
    assert half_width(np.ones(5)) == half_width(np.zeros(50)) == half_width(np.empty(0)) == math.inf


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.8])
def test_effective_size_knows_its_neighbours(rho: float) -> None:
    values = ar1_lognormal(default_rng(5), rho, 1, 20_000)[0]
    assert lag1(values) == pytest.approx(rho, abs=0.03)
    # the indicator of a Gaussian AR(1) correlates by 2/pi arcsin(rho^k): n/n_eff = 1, 1.83, 6.43
    tau = 1 + 4 / math.pi * sum(math.asin(rho**k) for k in range(1, 100))
    assert values.size / effective_size(values) == pytest.approx(tau, rel=0.2)


def test_few_repetitions_are_corrected_for_the_noise_of_their_own_correlation() -> None:
    # the indicator is + + - - + + - -: its autocorrelations are 1, 1/8, -3/4, -1/8; two lags count
    excess = 2 * (1 + 1 / 8) - 2
    correction = 1 + 16 * 2 / 8
    assert effective_size(np.array([1.0, 1, 2, 2] * 2)) == pytest.approx(
        8 / (1 + excess * correction)
    )


# ---------------------------------------------------------------- warm-up


def test_warm_up_is_steady_when_the_thirds_agree() -> None:
    assert steady(NOISE[:30])
    assert steady(np.full(9, 1.0))
    assert not steady(np.full(8, 1.0))
    # slow only in the first third
    assert steady(np.concatenate([np.full(10, 9.0), np.full(20, 1.0)]))
    assert not steady(np.geomspace(8.0, 1.0, 30))
    assert steady(np.repeat([1.0, 1.0, 1.019], 10)) and not steady(np.repeat([1.0, 1.0, 1.021], 10))


# ---------------------------------------------------------------- warnings


def two_modes(rng: Generator, n: int, ratio: float, share: float) -> Series:
    return np.where(rng.random(n) < share, ratio, 1.0) * rng.lognormal(0, 0.03, n)


def with_step(rng: Generator, n: int, at: float, factor: float) -> Series:
    return np.where(np.arange(n) >= at * n, factor, 1.0) * rng.lognormal(0, 0.03, n)


def flags_of(values: Series) -> list[str]:
    """What is seen of how the times changed."""
    seen = {"drifting": drifting(values), "multimodal": multimodal(values)}
    return [name for name, present in seen.items() if present]


def shares(make: Callable[[Generator], Series], tries: int) -> Counter[str]:
    """How often each flag is raised, of all tries."""
    rng = default_rng(17)
    counted = Counter(flag for _ in range(tries) for flag in flags_of(make(rng)))
    return Counter({flag: count / tries for flag, count in counted.items()})


@pytest.mark.parametrize(
    ("flag", "make"),
    [
        ("drifting", lambda rng: np.linspace(1.0, 1.2, 200) * rng.lognormal(0, 0.03, 200)),
        ("drifting", lambda rng: with_step(rng, 200, at=0.5, factor=1.1)),
        ("drifting", lambda rng: with_step(rng, 300, at=0.8, factor=0.8)),
        ("multimodal", lambda rng: two_modes(rng, 100, ratio=2.0, share=0.3)),
        ("multimodal", lambda rng: two_modes(rng, 200, ratio=1.3, share=0.5)),
        ("multimodal", lambda rng: two_modes(rng, 200, ratio=10.0, share=0.1)),
        # a gap, too thin for a dip
        ("multimodal", lambda rng: two_modes(rng, 400, ratio=30.0, share=0.03)),
    ],
)
def test_a_planted_fault_is_flagged(flag: str, make: Callable[[Generator], Series]) -> None:
    assert shares(make, tries=40)[flag] >= 0.95


@pytest.mark.parametrize("n", [60, 100, 300])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: rng.lognormal(0, 0.1, n),
        lambda rng, n: rng.lognormal(0, 1.0, n),
        lambda rng, n: rng.gamma(2.0, 1.0, n),
        lambda rng, n: rng.exponential(1.0, n),
        lambda rng, n: rng.uniform(1.0, 2.0, n),
        lambda rng, n: 1.0 + rng.pareto(1.5, n),
        lambda rng, n: np.exp(0.05 * rng.standard_t(2, n)),
        lambda rng, n: np.round(rng.lognormal(0, 0.1, n) * 20) / 20,  # a clock tick of 5 %
    ],
    ids=["lognormal", "wide lognormal", "gamma", "exponential", "uniform", "pareto", "t2", "ticks"],
)
def test_one_mode_is_one_mode(draw: Callable[[Generator, int], Series], n: int) -> None:
    seen = shares(lambda rng: draw(rng, n), tries=100)
    assert seen["multimodal"] <= 0.05 and seen["drifting"] <= 0.05


def test_ordinary_noise_raises_no_flag() -> None:
    assert (
        sum(bool(flags_of(times)) for times in ar1_lognormal(default_rng(23), 0.0, 200, 300)) < 10
    )


@pytest.mark.parametrize(("share", "ratio"), [(0.005, 3.0), (0.05, 1.5)])
def test_a_few_slow_repetitions_are_no_mode(share: float, ratio: float) -> None:
    """They lie apart, but move the mean by less than 20 %, or are less than 5 % of the central
    96 %."""
    slow = np.arange(2000) % round(1 / share) == 0
    calm = default_rng(5).lognormal(0, 0.01, 2000)
    assert "multimodal" not in flags_of(np.where(slow, ratio, 1.0) * calm)
    assert "multimodal" in flags_of(np.where(slow, 50 * ratio, 1.0) * calm)


def test_halves_of_fewer_than_six_do_not_drift() -> None:
    assert not drifting(np.repeat([1.0, 2.0], [5, 6]))
    assert drifting(np.repeat([1.0, 2.0], [6, 6]))


def test_one_straggler_is_neither_drift_nor_mode() -> None:
    values = NOISE[:100].copy()
    values[70] *= 100
    assert flags_of(values) == flags_of(NOISE[:100]) == []


def test_fewer_than_six_have_no_flags() -> None:
    assert flags_of(np.array([1.0, 2.0, 4.0])) == []


def test_mser_finds_the_transient() -> None:
    rng = default_rng(29)
    assert 45 <= mser5_cut(with_step(rng, 500, at=0.1, factor=0.5)) <= 60
    assert mser5_cut(with_step(rng, 500, at=0.8, factor=0.5)) >= 250
    assert mser5_cut(np.ones(49)) == mser5_cut(np.ones(500)) == 0


def test_a_summary_of_1_to_100() -> None:
    assert list(summarise(alternating(100)).values()) == [1.0, 50.5, 90.0, 95.0, None, None, 100.0]
    assert list(summarise(np.array([2.0])).values()) == [2.0, 2.0, None, None, None, None, 2.0]
    straggler = np.where(alternating(100) == 100, 1000.0, alternating(100))
    assert summarise(straggler)["mean_s"] == 59.5, "not the median, which stays 50.5"


def test_outliers_lie_beyond_either_fence() -> None:
    """The quartiles are 3 and 7, so the fences are -3 and 13."""
    for low, high, outliers in [(-3.0, 13.0, 0), (-3.1, 13.0, 1), (-3.0, 13.1, 1), (-9, 19, 2)]:
        assert tukey_outliers(np.array([low, 2, 3, 4, 5, 6, 7, 8, high])) == outliers
