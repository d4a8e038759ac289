"""When a visit and a case end: every reason, the least number of repetitions, blocks, the budget;
samples per stamp."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from composed import FACTS, settings_of
from hypothesis import given
from hypothesis import strategies as st
from noisy_series import ar1_lognormal
from numpy.random import default_rng

from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.layout import Layout
from commbench.core.variables import Engine
from commbench.measure.plan import plan
from commbench.measure.time_limits import (
    StopRule,
    TotalBudget,
    VisitRule,
    WarmUpRule,
    block_deadline_s,
    case_deadline_s,
    max_repetitions,
    spacing_s,
    stop_rule,
    visit_rule,
    warm_up_rule,
)
from commbench.measure.visits import Visit
from commbench.runtime.control import hosted_world
from commbench.stats.series import Series, median_interval

seconds = st.floats(min_value=1e-7, max_value=10.0)
NOISE = ar1_lognormal(default_rng(3), 0.0, 1, 20_000)[0]  # median 1 ms, 10 % spread


def measure(
    times: Series, rule: StopRule, hint_s: float = 1e-3
) -> Iterator[tuple[Series, float, str | None]]:
    """What the session does: blocks until there is a reason; yields (values, spent_s, reason) after
    each block."""
    reason = None
    n = 0
    while reason is None:
        n += rule.next_block(times[:n], float(times[:n].sum()), hint_s=hint_s)
        assert n <= times.size, "the test has too few times"
        spent = float(times[:n].sum())
        reason = rule.reason(times[:n], spent)
        yield times[:n], spent, reason


def outcome(
    times: Series, rule: StopRule, hint_s: float = 1e-3
) -> tuple[Series, float, str | None]:
    return list(measure(times, rule, hint_s))[-1]


def rule_of(
    target: float = 0.02,
    z: float = 1.96,
    max_repetitions: int = 2000,
    budget_s: float = 10.0,
    fixed: int | None = None,
    share: float = 1.0,
) -> StopRule:
    return StopRule(target, z, max_repetitions, budget_s, fixed, share)


@pytest.mark.parametrize(
    ("rule", "reason", "n"),
    [
        (rule_of(), "ci", range(100, 500)),
        (rule_of(target=1.0), "ci", range(30, 31)),
        (rule_of(target=1.0, share=1 / 3), "ci", range(10, 11)),
        (rule_of(target=1e-5, max_repetitions=100), "max_repetitions", range(100, 101)),
        (rule_of(target=1e-5, budget_s=0.05), "budget", range(40, 60)),
        (rule_of(target=1e-5), "noise_stable", range(500, 700)),
        (rule_of(fixed=100), "fixed", range(100, 101)),
        (rule_of(fixed=100, budget_s=0.05), "budget", range(45, 60)),
        (rule_of(fixed=10_000, budget_s=math.inf), "fixed", range(10_000, 10_001)),
    ],
)
def test_every_reason_can_be_reached(rule: StopRule, reason: str, n: range) -> None:
    values, _, stop_reason = outcome(NOISE, rule)
    assert stop_reason == reason
    assert values.size in n


@pytest.mark.parametrize(("sample_s", "n"), [(0.02, 30), (0.2, 10), (2.0, 6)])
def test_slow_samples_need_fewer(sample_s: float, n: int) -> None:
    values, _, reason = outcome(np.full(100, sample_s), rule_of(budget_s=60.0), hint_s=sample_s)
    assert (values.size, reason) == (n, "ci")


def test_the_stricter_quantile_takes_longer() -> None:
    assert outcome(NOISE, rule_of(z=2.576))[0].size > outcome(NOISE, rule_of())[0].size


@pytest.mark.parametrize(("sample_s", "n"), [(3.0, 6), (7.0, 3), (50.0, 1)])
def test_a_very_slow_case_waits_for_six_but_not_beyond_twice_the_budget(
    sample_s: float, n: int
) -> None:
    times = sample_s * NOISE[:9] / np.median(NOISE)
    values, _, reason = outcome(times, rule_of(target=1e-6, budget_s=10.0), hint_s=sample_s)
    assert (values.size, reason) == (n, "budget")


def test_a_visit_ends_where_another_repetition_has_no_time() -> None:
    """And waits for its share of the six that an interval needs."""
    rule = rule_of(target=1e-6, budget_s=10.0)
    assert [rule.reason(NOISE[:9], spent_s) for spent_s in (8.9, 9.1)] == [None, "budget"]
    shares = [rule_of(target=1e-6, share=share).reason(NOISE[:1], 6.0) for share in (1.0, 1 / 6)]
    assert shares == [None, "budget"]


def test_a_block_counts_the_time_between_its_samples() -> None:
    """0.1 s for each of 30 samples of 1 ms: 5 more in half a second."""
    assert rule_of().next_block(np.full(30, 1e-3), spent_s=3.0) == 5


def test_noise_that_still_grows_is_not_stable() -> None:
    growing = 1e-3 + (NOISE - 1e-3) * np.linspace(0, 30, NOISE.size)
    assert outcome(np.abs(growing), rule_of(target=1e-5))[2] == "max_repetitions"


def test_a_target_within_reach_is_not_given_up() -> None:
    assert outcome(NOISE, rule_of(target=0.006))[2] in ("ci", "max_repetitions")


def test_there_are_at_least_two_blocks() -> None:
    for rule in (rule_of(target=1.0), rule_of(fixed=20), rule_of(share=1 / 5, target=1.0)):
        assert len(list(measure(NOISE, rule))) >= 2


def test_blocks_grow_by_a_quarter() -> None:
    sizes = [
        values.size for values, _, _ in measure(NOISE, rule_of(target=1e-5, max_repetitions=100))
    ]
    assert sizes == [15, 30, 38, 48, 60, 75, 94, 100]


def test_a_block_lasts_as_long_as_the_meeting_after_it() -> None:
    fast = np.full(30, 1e-6)
    few = rule_of(target=1e-9, max_repetitions=500)
    assert rule_of().next_block(fast, 1e-3, meeting_s=0.001) == 1000
    assert rule_of(max_repetitions=100_000).next_block(fast, 1e-3, meeting_s=1.0) == 5000, (
        "a meeting may be disturbed"
    )
    assert few.next_block(fast, 1e-3, meeting_s=0.001) == 470
    assert rule_of(fixed=40).next_block(fast, 1e-3, meeting_s=0.001) == 10
    assert WarmUpRule(10, 0.01, 1.0).next_block(fast, 0.0, last=8, meeting_s=0.001) == (1000, True)


@given(
    st.lists(seconds, max_size=40).map(np.array),
    st.floats(1.0, 3.0),
    seconds,
    st.one_of(st.none(), st.integers(1, 100)),
    st.floats(0.1, 20.0),
)
def test_a_block_keeps_every_limit(
    values: Series, overhead: float, hint_s: float, fixed: int | None, budget_s: float
) -> None:
    rule = rule_of(fixed=fixed, budget_s=budget_s, max_repetitions=60)
    spent = float(values.sum()) * overhead
    block = rule.next_block(values, spent, hint_s)
    sample_s = float(np.median(values)) if values.size else hint_s
    assert block >= 1
    if block > 1:
        assert values.size + block <= (fixed or 60)
        assert block * sample_s <= 0.5 + 1e-9
        assert block * max(sample_s, spent / max(values.size, 1)) <= budget_s - spent + 1e-9


@given(st.floats(1e-4, 0.4), st.floats(0.1, 5.0), st.integers(0, 2**32 - 1))
def test_the_budget_is_kept_within_one_block(sample_s: float, budget_s: float, seed: int) -> None:
    times = sample_s * default_rng(seed).lognormal(0, 0.2, 3000)
    _, spent, reason = outcome(times, rule_of(target=1e-6, budget_s=budget_s), hint_s=sample_s)
    assert reason is not None
    assert spent <= max(budget_s + 0.5, 2 * budget_s) + times.max()


# ---------------------------------------------------------------- the interval of a series that the
# rule ended


def coverage(ends: list[Series], corrected: bool) -> float:
    """Share of the series whose 95 % interval holds the true median."""
    intervals = [
        median_interval(values, effective=None if corrected else values.size) for values in ends
    ]
    return float(np.mean([low <= 1e-3 <= high for low, high in filter(None, intervals)]))


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_the_reported_interval_keeps_its_promise(rho: float) -> None:
    """300 series, stopped at 2.5 % by the rule itself; a plain interval breaks it where they are
    correlated."""
    rule = StopRule(target=0.025, z=1.96, max_repetitions=6000, budget_s=math.inf)
    ends = [outcome(times, rule) for times in ar1_lognormal(default_rng(11), rho, 300, 6000)]
    assert {reason for _, _, reason in ends} == {"ci"}
    series = [values for values, _, _ in ends]
    assert 0.90 <= coverage(series, corrected=True) <= 0.98
    assert rho == 0.0 or coverage(series, corrected=False) < 0.9


# ---------------------------------------------------------------- when a case is left


def visit_rule_of(
    least: int = 6, target: float = 0.01, max_repetitions: int = 10**6, budget_s: float = 10.0
) -> VisitRule:
    return VisitRule(target, 1.96, least, max_repetitions, budget_s)


def visits_of(*medians_s: float) -> list[Visit]:
    """Visits whose own repetitions lie within 0.1 % of their median."""
    ends = [(0.999 * median, 1.001 * median) for median in medians_s]
    return [Visit(0, median, 100, end, end) for median, end in zip(medians_s, ends, strict=True)]


CALM = visits_of(*[1.0, 1.001] * 3)
WIDE = visits_of(*[1.0, 1.5] * 3)
WAITED = [replace(visit, core_wait_share=0.06) for visit in CALM]


@pytest.mark.parametrize(
    ("visits", "spent_s", "rule", "reason"),
    [
        (CALM[:5], 1.0, visit_rule_of(), None),
        (CALM, 1.0, visit_rule_of(), "ci"),
        (CALM[:3], 1.0, visit_rule_of(least=3), "ci"),
        # 0.2 now, much less with all visits there is time for
        (WIDE, 0.001, visit_rule_of(target=0.1), None),
        (WIDE, 1.0, visit_rule_of(), "noise_stable"),
        (WIDE, 9.0, visit_rule_of(), "budget"),
        (WIDE[:2], 19.0, visit_rule_of(), None),  # an interval is worth waiting for
        (WIDE[:3], 21.0, visit_rule_of(), "budget"),
        (WIDE[:2], 99.0, visit_rule_of(least=3), None),  # two visits tell little
        (WIDE, 1.0, visit_rule_of(max_repetitions=600), "max_repetitions"),
        (WIDE[:1], 1.0, visit_rule_of(least=1), "fixed"),
        # those in which ranks waited for a core are made again while there is time
        (WAITED, 1.0, visit_rule_of(max_repetitions=600), None),
        (WAITED, 9.0, visit_rule_of(max_repetitions=600), "budget"),
        (WAITED[:1] + CALM[:5], 1.0, visit_rule_of(), None),
        (WAITED[:1] + CALM, 1.0, visit_rule_of(), "ci"),
        (WAITED[:1], 1.0, visit_rule_of(least=1), "fixed"),
    ],
)
def test_every_reason_to_leave_a_case(
    visits: list[Visit], spent_s: float, rule: VisitRule, reason: str | None
) -> None:
    assert rule.reason(visits, spent_s, "fixed") == reason


# ---------------------------------------------------------------- the warm-up

STEADY_TIMES = np.full(12, 1e-3)
RAMP = np.linspace(2e-3, 1e-3, 12)


@pytest.mark.parametrize(
    ("rule", "values", "spent_s", "expected"),
    [
        (WarmUpRule(10, 0.01, 1.0), STEADY_TIMES, 0.02, (0, True)),
        (WarmUpRule(20, 0.01, 1.0), STEADY_TIMES, 0.02, (16, True)),  # too few repetitions
        (WarmUpRule(10, 0.05, 1.0), STEADY_TIMES, 0.02, (16, True)),  # too short
        (WarmUpRule(10, 0.01, 1.0), RAMP, 0.02, (16, False)),
        (WarmUpRule(10, 0.01, 1.0), RAMP, 1.0, (0, False)),  # the limit
        # a block as long as the limit
        (WarmUpRule(10, 0.01, 0.003), STEADY_TIMES, 0.002, (3, True)),
        (WarmUpRule(0, 0.0, 1.0, trial=True), RAMP, 0.0, (0, True)),
    ],
)
def test_a_warm_up_ends_when_it_is_long_enough_and_steady_or_at_its_limit(
    rule: WarmUpRule, values: Series, spent_s: float, expected: tuple[int, bool]
) -> None:
    assert rule.next_block(values, spent_s, last=8) == expected


def test_the_first_block_of_a_warm_up() -> None:
    assert WarmUpRule(10, 0.01, 1.0).first_block(1e-3, 1e-3) == 10
    assert WarmUpRule(10, 0.01, 1.0).first_block(0.25, 1e-3) == 2, "no longer than half a second"
    assert WarmUpRule(10**6, 0.01, 1.0).first_block(0.0, 0.0) == 10_000, "on a virtual clock"
    assert WarmUpRule(0, 0.0, 1.0).first_block(1e-3, 1e-3) == 0
    assert [
        WarmUpRule(0, 0.0, 1.0, trial=True).first_block(1e-3, call_s) for call_s in (1e-3, 1.0)
    ] == [20, 0]


def planned_with(settings: Settings, engine: Engine = "python") -> Planned:
    of_two = replace(settings, layouts=(Layout(1, 2),))
    planned = plan(of_two, hosted_world(1, 2)[0], FACTS)[0]
    return replace(planned, case=replace(planned.case, engine=engine))


@pytest.mark.parametrize(
    ("words", "visit", "slow_start", "seconds"),
    [
        (("timing=default",), 1, False, 0.05),
        (("timing=default",), 1, True, 1.0),
        (("timing=default",), 2, True, 0.05 / 6),
        (("timing=quick",), 1, True, 1.0),
        (("timing=quick", "budget.case_s=0.2"), 1, True, 0.2),
        (("timing=default", "timing.warmup_s=2"), 1, True, 2.0),
        (("timing=default", "timing.warmup_s=0"), 1, True, 0.0),
    ],
)
def test_a_slow_start_takes_a_second_of_the_first_visit(
    words: tuple[str, ...], visit: int, slow_start: bool, seconds: float
) -> None:
    settings = settings_of("backend=simulated", *words)
    budget_s = settings.case_s / settings.timing.visits
    rule = warm_up_rule(planned_with(settings), settings, budget_s, visit, slow_start)
    assert rule.seconds == pytest.approx(seconds)
    assert rule.limit_s >= rule.seconds


def test_a_warm_up_takes_at_most_a_fifth_of_a_visit_and_5_s() -> None:
    settings = settings_of("backend=simulated", "timing=default", "timing.warmup_repetitions=60")
    planned = planned_with(settings)
    rules = [warm_up_rule(planned, settings, budget_s, 1, False) for budget_s in (10.0, 100.0)]
    assert [rule.limit_s for rule in rules] == [2.0, 5.0]
    later = warm_up_rule(planned, settings, 10.0, 2, False)
    assert [rule.repetitions for rule in (rules[0], later)] == [60, 10]


def test_on_a_virtual_clock_a_warm_up_takes_repetitions_and_no_real_time() -> None:
    settings = settings_of("backend=simulated", "timing=default", "timing.warmup_s=2")
    rule = warm_up_rule(planned_with(settings, "virtual"), settings, 10.0, 1, True)
    assert (rule.repetitions, rule.seconds) == (10, 0.0)


@pytest.mark.parametrize(
    ("words", "visits"), [("timing=default", 6), ("timing=rigorous", 18), ("timing=fixed", 1)]
)
def test_all_visits_together_know_the_median_to_the_target(words: str, visits: int) -> None:
    settings = settings_of("backend=simulated", "layout=1x2", words)
    planned = plan(settings, hosted_world(1, 2)[0], FACTS)[0]
    assert stop_rule(planned, settings).target == pytest.approx(
        settings.timing.target * visits**0.5
    )


def test_visits_and_launches_share_the_time_and_the_repetitions_of_a_case() -> None:
    """3 launches of 6 visits each."""
    settings = settings_of("backend=simulated", "layout=1x2", "timing=rigorous")
    timing = replace(settings.timing, visits=6, launches=3, case_s=36.0, pass_s=5.0)
    settings = replace(settings, timing=timing)
    planned = plan(settings, hosted_world(1, 2)[0], FACTS)[0]
    one = stop_rule(planned, settings)
    most = max_repetitions(planned, settings)
    assert (one.budget_s, one.max_repetitions) == (36 / 18, math.ceil(most / 18))
    assert one.share == pytest.approx(1 / 18)
    rules = [visit_rule(planned, settings, extra_s) for extra_s in (0.0, 4.0, 99.0)]
    assert [rule.budget_s for rule in rules] == [12, 12 + 4, 12 + 12]
    assert rules[0].max_repetitions == math.ceil(most / 3) and rules[0].least == 6
    assert spacing_s(settings) == 36 / 18
    assert spacing_s(replace(settings, timing=replace(timing, pass_s=1.0))) == 1.0


def test_idle_ranks_wait_for_all_phases_of_a_case_and_longer_for_more_memory() -> None:
    """At least for connecting, the warm-up and the measured time, each with a block that is
    late."""
    settings = settings_of("backend=simulated", "layout=1x2", "sizes=[8,1GiB]", "budget.late_s=60")
    settings = replace(settings, timing=replace(settings.timing, case_s=100.0))
    small, large = plan(settings, hosted_world(1, 2)[0], FACTS)[:2]
    assert large.node_bytes >= 2 * 2**30
    for planned in (small, large):
        block_s = 60 + 20 * 0.5 + 10 * planned.node_bytes / 0.2e9
        assert block_deadline_s(planned, settings) == pytest.approx(block_s)
        assert case_deadline_s(planned, settings) == pytest.approx(3 * block_s + 3 * 100)


def test_a_warm_up_takes_its_time_from_the_visit_but_at_most_half_of_it() -> None:
    rule = StopRule(0.01, 1.96, 1000, budget_s=2.0)
    assert [rule.after_warm_up(seconds).budget_s for seconds in (0.0, 0.5, 1.5)] == [2.0, 1.5, 1.0]


@pytest.mark.parametrize(
    ("total_s", "later_s", "ends"),
    [(None, 1e6, False), (200.0, 0.0, False), (200.0, 150.0, True), (50.0, 0.0, True)],
)
def test_the_budget_of_a_run_counts_earlier_launches_and_the_wait_before_a_pass(
    total_s: float | None, later_s: float, ends: bool
) -> None:
    budget = TotalBudget(total_s, time.monotonic() - 100.0)
    assert 100.0 <= budget.spent_s < 140.0
    reason = budget.end_reason(later_s)
    assert reason == (f"budget.total_s={total_s:g} is spent" if ends else None)
