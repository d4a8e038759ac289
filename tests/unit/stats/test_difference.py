"""One rule for "different": equal things differ falsely in at most 5 % by report, crossover and
compare alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sample_cases import case_row
from size_rows import frame_of_rows

from commbench.analysis.combined import combine_runs
from commbench.analysis.compare import compare
from commbench.features.crossovers.crossover import comparisons
from commbench.results.row import Row
from commbench.stats.difference import (
    Time,
    are_enough,
    differ,
    holm,
    launches_needed,
    mann_whitney,
    noise,
    ratio_interval,
    signed_rank,
)
from commbench.stats.interval import Interval

Series = NDArray[np.float64]

TRIALS = 200
# 5 % and twice the chance of so few trials ...
FEW_FALSE = 0.05 + 2 * math.sqrt(0.05 * 0.95 / TRIALS)
MANY_TRIALS = 10_000  # ... and the rule alone, of which there are enough, within 5 %
VISITS = 6
VISIT_SPREAD = 0.05


def cases(
    launches: int,
    spread: float,
    seed: int,
    shift: float = 1.0,
    trials: int = TRIALS,
    one_run: bool = False,
    visits: int = VISITS,
) -> list[Row]:
    """Rows of the backends a and b at `trials` sizes around 1 ms, b taking `shift` times as long.

    Each launch has its own level, each visit varies around it, sometimes in two levels; the row has
    the median visit and the range of all visits. With `one_run` both backends were visited in turn
    in the same launch.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for launch, (backend, factor) in itertools.product(range(launches), (("a", 1.0), ("b", shift))):
        levels = np.exp(rng.normal(0, 0.0 if one_run else spread, (trials, 1)))
        luck = rng.normal(0, VISIT_SPREAD, (trials, visits)) + 0.3 * (
            rng.random((trials, visits)) < 0.3
        )
        times = np.sort(1e-3 * factor * levels * np.exp(luck), axis=1)
        for trial in range(trials):
            median_s = float(np.median(times[trial]))
            size = 8 * (trial + 1)
            rows.append(
                case_row(
                    benchmark="all_reduce",
                    backend=backend,
                    layout="1x2",
                    world_size=2,
                    ranks_per_node=2,
                    engine="python",
                    message_bytes=size,
                    elements=size // 4,
                    status="ok",
                    timing="default",
                    run_id=str(launch) if one_run else f"{backend}{launch}",
                    trial=launch,
                    label="",
                    case_id=f"{backend}{trial}",
                    median_s=median_s,
                    ci_low_s=float(times[trial, 0]),
                    ci_high_s=float(times[trial, -1]),
                    interval_of="visits",
                    interval_level=1 - 0.5 ** (visits - 1),
                    algbw_gb_per_s=size / median_s / 1e9,
                    clock="monotonic",
                )
            )
    return rows


def shares(rows: Sequence[Row]) -> Iterator[float]:
    """The share of the sizes at which a and b are called different: by crossover, report and
    compare."""
    (pair,) = comparisons(rows)
    yield float((pair.winners >= 0).mean())
    sizes = {row.message_bytes for row in rows}
    yield sum(best.is_decided for best in combine_runs(rows).best) / len(sizes)
    base, new = (
        frame_of_rows([row for row in rows if row.backend == backend]) for backend in ("a", "b")
    )
    verdicts = compare(base, new, by="backend").verdict
    yield float(verdicts.isin(["FASTER", "SLOWER", "SUSPECT"]).mean())


@pytest.mark.parametrize(
    ("launches", "spread"),
    [
        (1, 0.0),
        (1, 0.3),
        (3, 0.3),
        (10, 0.3),
        *(pytest.param(count, 0.3, marks=pytest.mark.long) for count in (2, 4)),
    ],
)
def test_equal_things_are_called_different_in_at_most_5_percent(
    launches: int, spread: float
) -> None:
    for share in shares(cases(launches, spread, seed=launches)):
        assert share <= FEW_FALSE


@pytest.mark.long
@pytest.mark.parametrize(
    ("launches", "spread", "visits", "one_run"),
    [
        *((launches, 0.3, VISITS, False) for launches in (1, 2, 3, 4, 10)),
        *((1, 0.0, visits, True) for visits in (3, 5, 6)),
    ],
)
def test_the_rule_alone_calls_at_most_5_percent_of_equal_things_different(
    launches: int, spread: float, visits: int, one_run: bool
) -> None:
    """Two backends at one size, as in `cases`."""
    rng = np.random.default_rng(7 * launches + visits)
    shape = (2 * MANY_TRIALS, launches, visits)
    luck = rng.normal(0, VISIT_SPREAD, shape) + 0.3 * (rng.random(shape) < 0.3)
    times = np.exp(rng.normal(0, spread, (2 * MANY_TRIALS, launches, 1)) + luck)
    columns = np.median(times, axis=2), times.min(axis=(1, 2)), times.max(axis=(1, 2))
    level = 1 - 0.5 ** (visits - 1)
    run_id = "r" if one_run else None
    sides = [
        Time(Interval(np.median(medians), low, high, level), tuple(medians), run_id)
        for medians, low, high in zip(*(column.tolist() for column in columns), strict=True)
    ]
    assert sum(map(differ, sides[::2], sides[1::2])) <= 0.05 * MANY_TRIALS


@pytest.mark.parametrize("visits", [3, 5, 6])
def test_equal_things_that_one_run_visits_in_turn_are_called_different_in_at_most_5_percent(
    visits: int,
) -> None:
    for share in shares(cases(1, 0.0, seed=visits, one_run=True, visits=visits)):
        assert share <= FEW_FALSE


@pytest.mark.parametrize(
    ("launches", "spread", "one_run", "factor"),
    [(1, 0.0, True, 2.0), (3, 0.05, False, 3.0), (4, 0.1, False, 3.0), (10, 0.3, False, 4.0)],
)
def test_a_large_factor_is_seen_at_each_of_50_sizes(
    launches: int, spread: float, one_run: bool, factor: float
) -> None:
    shifted = cases(launches, spread, 1, shift=factor, trials=50, one_run=one_run)
    crossover, report, compared = shares(shifted)
    assert crossover >= 0.9 and report >= 0.9
    assert compared >= 0.9 or launches < 4  # no verdict below 4 launches


def time_of(
    median_s: float, low_s: float, high_s: float, level: float = 0.95, run_id: str | None = None
) -> Time:
    """The time of one launch."""
    return Time(Interval(median_s, low_s, high_s, level), (median_s,), run_id)


def test_one_launch_of_each_tells_of_this_run_only_and_only_what_launches_can_not_explain() -> None:
    base = time_of(1.0, 0.99, 1.01, run_id="a")
    for factor, run_id, expected in (
        (1.3, "b", 0),
        (2.3, "b", 0),
        (2.5, "b", 1),
        (1.3, "a", 1),
        (1.01, "a", 0),
    ):
        other = time_of(factor, factor * 0.99, factor * 1.01, run_id=run_id)
        assert differ(base, other) == differ(other, base) == expected
    assert not differ(base, Time(Interval(9.0), (9.0,), "a"))
    unknown = [time_of(factor, factor * 0.99, factor * 1.01) for factor in (1.0, 1.3)]
    assert not differ(*unknown), "two that name no run are not known to be of the same"
    three = Time(Interval(2.1, 1.9, 2.3, 0.95), (2.0, 2.1, 2.2))
    assert not differ(base, three), "launches enough on one side only"
    assert differ(Time(Interval(1.05, 0.9, 1.2, 0.95), (1.0, 1.05, 1.1)), three)


def test_ranges_of_three_visits_must_be_far_apart() -> None:
    """They have a level of 75 %: disjoint ranges alone would differ falsely in 10 %."""
    slow = time_of(1.06, 1.03, 1.08, 0.75, "r")
    assert not differ(time_of(0.95, 0.93, 0.97, 0.75, "r"), slow)
    assert differ(time_of(0.85, 0.83, 0.87, 0.75, "r"), slow)


@pytest.mark.parametrize("sizes", [1, 6])
@pytest.mark.parametrize(("launches", "one_run"), [(1, True), (3, False), (5, False), (8, False)])
def test_equal_things_have_a_winner_at_any_size_as_seldom_as_is_said(
    launches: int, one_run: bool, sizes: int
) -> None:
    """Launches differ by 3 %, days by 2 %, and visits by 2 %; launches in turn share their days.
    In one run all share its launch."""
    rng = np.random.default_rng(launches)
    luck = rng.normal(0, 0.03, (TRIALS, 2, launches, 1, 1)) * (not one_run)
    day = rng.normal(0, 0.02, (TRIALS, 1, launches, 1, 1))
    times = np.exp(luck + day + rng.normal(0, 0.02, (TRIALS, 2, launches, sizes, 3)))
    won = 0
    for trial in times:
        sides = [
            [
                Time(
                    Interval(np.median(own), own.min(), own.max(), 0.75),
                    tuple(np.median(own, axis=1).tolist()),
                    "r" if one_run else None,
                )
                for own in np.swapaxes(side, 0, 1)
            ]
            for side in trial
        ]
        won += any(differ(*pair, sizes) for pair in zip(*sides, strict=True))
    most = 0.05 if are_enough(launches, launches, sizes) else 0.01
    assert won <= most * TRIALS + 2 * math.sqrt(most * TRIALS)


# ---------------------------------------------------------------- the interval of a ratio


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("count", [4, 6, 10, 35])
def test_the_interval_of_a_ratio_holds_the_truth_in_95_percent(count: int, paired: bool) -> None:
    """Also with skewed launches."""
    if paired and count < launches_needed(1, paired=True):
        return
    rng = np.random.default_rng(count)
    intervals = [
        ratio_interval(*np.exp(rng.exponential(0.1, (2, count))), paired) for _ in range(TRIALS)
    ]
    held = sum(interval.low <= 1 <= interval.high for interval in intervals) / TRIALS
    assert 0.93 <= held <= 1
    assert all(
        interval.low <= interval.value * 1.2 and interval.value <= interval.high * 1.2
        for interval in intervals
    )


@given(
    st.lists(st.floats(0.1, 10), min_size=3, max_size=8),
    st.lists(st.floats(0.1, 10), min_size=3, max_size=8),
)
def test_exchanged_sides_have_the_reciprocal_interval(
    first: list[float], second: list[float]
) -> None:
    base = ratio_interval(np.array(first), np.array(second))
    other = ratio_interval(np.array(second), np.array(first))
    assert (base.low, base.high) == (pytest.approx(1 / other.high), pytest.approx(1 / other.low))


def test_the_ratio_of_pairs_is_the_median_of_new_over_base_and_its_interval_their_range() -> None:
    """Of 6 pairs all are needed for 95 %. The ratio of the sides' medians is 1.2, that of BASE over
    NEW 0.74."""
    base = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    seen = ratio_interval(base, base * np.array([1.6, 1.5, 1.2, 1.2, 1.4, 1.3]), paired=True)
    assert (seen.low, seen.value, seen.high) == pytest.approx((1.2, 1.35, 1.6))


def test_the_interval_of_four_launches_against_four_is_the_range_of_all_ratios() -> None:
    base = np.array([1.0, 1.25, 1.5, 2.0])
    seen = ratio_interval(base, np.array([3.0, 4.0, 6.0, 9.0]))
    assert (seen.low, seen.value, seen.high) == pytest.approx((3 / 2, 5 / 1.375, 9 / 1))


def test_pairs_take_away_what_both_sides_share() -> None:
    rng = np.random.default_rng(3)
    drift = np.exp(np.linspace(0, 0.5, 10))
    new = 1.05 * drift * np.exp(rng.normal(0, 0.002, 10))
    assert ratio_interval(drift, new).holds(1)
    assert ratio_interval(drift, new, paired=True).low > 1.04


def test_the_noise_of_equal_launches_grows_with_their_effect() -> None:
    rng = np.random.default_rng(5)
    quiet, loud = (noise(1e-3 * np.exp(rng.normal(0, effect, 20)), rng) for effect in (0.01, 0.1))
    assert 0.002 < quiet < 0.03 < loud < 0.3
    assert noise(np.ones(4), rng) == 0.0


def test_noise_is_the_ratio_of_two_halves_whichever_is_larger() -> None:
    """Of all pairs of halves 2 in 30 are {8, 16} and {1, 2}, whose medians differ by a factor of
    8."""
    launches = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    assert noise(launches, np.random.default_rng(1)) == pytest.approx(math.log(8))


# ---------------------------------------------------------------- second opinion


@pytest.mark.parametrize(
    ("first", "second", "p_value"),
    [
        # the example of scipy.stats.mannwhitneyu, U = 17
        ([19, 22, 16, 29, 24], [20, 11, 17, 12], 1 / 9),
        ([1, 2, 3, 4], [5, 6, 7, 8], 2 / 70),
        ([1, 2, 3], [4, 5, 6], 2 / 20),
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
        ([1], [2], 1.0),
        ([5, 5, 5, 5], [5, 5, 5, 5], 1.0),
    ],
)
def test_mann_whitney_has_the_known_values(
    first: list[float], second: list[float], p_value: float
) -> None:
    assert mann_whitney(np.array(first, float), np.array(second, float)) == pytest.approx(p_value)
    assert mann_whitney(np.array(second, float), np.array(first, float)) == pytest.approx(p_value)


@pytest.mark.parametrize(
    ("base", "new", "p_value"),
    [
        ([1, 1, 1, 1, 1, 1], [2, 3, 4, 5, 6, 7], 2 / 64),
        ([2, 1, 1, 1, 1, 1], [1, 3, 4, 5, 6, 7], 2 * 2 / 64),  # the smallest rank on the other side
        ([1, 2], [2, 1], 1.0),  # tied
        ([5, 5, 5], [5, 5, 5], 1.0),
        ([1, 5], [2, 5], 1.0),  # a pair without a difference counts for nothing
    ],
)
def test_the_signed_rank_test_has_the_known_values(
    base: list[float], new: list[float], p_value: float
) -> None:
    assert signed_rank(np.array(base, float), np.array(new, float)) == pytest.approx(p_value)
    assert signed_rank(np.array(new, float), np.array(base, float)) == pytest.approx(p_value)


def test_the_normal_limit_of_the_signed_ranks_continues_the_exact_values() -> None:
    logs = np.random.default_rng(8).normal(0.2, 1, 61)
    exact, limit = (signed_rank(np.ones(n), np.exp(logs[:n])) for n in (60, 61))
    assert limit == pytest.approx(exact, rel=0.3) and limit != exact


@pytest.mark.parametrize(
    ("cases", "paired", "launches"),
    [(1, True, 6), (2, True, 7), (24, True, 10), (1, False, 4), (2, False, 5), (24, False, 7)],
)
def test_so_many_launches_are_enough_and_one_less_is_not(
    cases: int, paired: bool, launches: int
) -> None:
    def p(count: int) -> float:
        low = np.arange(1.0, count + 1)
        high = np.arange(1.0, count + 1) + 100
        return cases * (signed_rank if paired else mann_whitney)(low, high)

    assert launches_needed(cases, paired) == launches
    assert p(launches) <= 0.05 < p(launches - 1)


def counted(first: list[int], second: list[int]) -> Fraction:
    """By its definition: the share of all divisions whose count of wins is as far out, twice the
    smaller tail."""
    values = first + second

    def wins(chosen: tuple[int, ...]) -> Fraction:
        others = [values[index] for index in range(len(values)) if index not in chosen]
        mine = [values[index] for index in chosen]
        return sum((Fraction((a > b) * 2 + (a == b), 2) for a in mine for b in others), Fraction(0))

    seen = wins(tuple(range(len(first))))
    every = [wins(chosen) for chosen in itertools.combinations(range(len(values)), len(first))]
    tails = sum(count <= seen for count in every), sum(count >= seen for count in every)
    return min(Fraction(1), Fraction(2 * min(tails), len(every)))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_mann_whitney_counts_all_divisions_also_with_ties(
    first: list[int], second: list[int]
) -> None:
    exact = mann_whitney(np.array(first, float), np.array(second, float))
    assert exact == pytest.approx(float(counted(first, second)))


def test_the_normal_limit_continues_the_exact_values() -> None:
    rng = np.random.default_rng(6)
    first = rng.normal(0, 1, 30)
    second = rng.normal(0.5, 1, 30)
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
