"""The visits of a case: the interval of their medians, its flags, whether it holds the truth; and
the record of a case, which a later start continues as if there had been one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from composed import FACTS, settings_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator, default_rng
from sample_cases import case_row
from visited import add_visit

from commbench.core.case import Planned, World
from commbench.core.states import INTERRUPTED
from commbench.measure.conditions import Conditions
from commbench.measure.counters import MeasuredCounters
from commbench.measure.plan import plan
from commbench.measure.row_samples import row_samples
from commbench.measure.rows import RowFacts, row
from commbench.measure.samples import (
    CORE_WAIT,
    GPU_THROTTLE_REASONS,
    MEASURED_HOST_BOUND,
    Block,
    Counts,
    Samples,
)
from commbench.measure.time_limits import VisitRule
from commbench.measure.transports import TransportEvidence
from commbench.measure.visits import (
    CaseRecord,
    Numbering,
    Visit,
    changes,
    coverage,
    earlier_visits,
    estimate,
    levels,
    levels_text,
    spread,
)
from commbench.results.row import Row
from commbench.runtime.control import hosted_world
from commbench.runtime.recovery import EarlierVisits
from commbench.stats.series import Series

medians = st.lists(st.floats(1e-7, 10.0), min_size=2, max_size=40)


def visits_of(*medians_s: float, launch: int = 0) -> list[Visit]:
    """Visits whose own repetitions lie within 0.1 % of their median."""
    return [
        Visit(
            launch, median, 100, (0.999 * median, 1.001 * median), (0.999 * median, 1.001 * median)
        )
        for median in medians_s
    ]


# ---------------------------------------------------------------- the interval


@pytest.mark.parametrize(
    ("n", "ranks", "level"),
    [
        (2, (1, 2), 0.5),
        (3, (1, 3), 0.75),
        (5, (1, 5), 0.9375),
        (6, (1, 6), 0.96875),
        (9, (2, 8), 0.9609375),
    ],
)
def test_the_interval_has_the_ranks_and_the_level_of_the_binomial(
    n: int, ranks: tuple[int, int], level: float
) -> None:
    seen = estimate(visits_of(*np.arange(1.0, n + 1)))
    assert (seen.low, seen.high) == ranks
    assert (seen.level, seen.of, seen.value) == (level, "visits", (n + 1) / 2)


@given(medians, st.sampled_from([1.96, 2.576]))
def test_the_interval_encloses_the_median_of_the_visits(values: list[float], z: float) -> None:
    seen = estimate(visits_of(*values), z)
    assert seen.is_known and seen.level is not None
    assert min(values) <= seen.low <= seen.value <= seen.high <= max(values)
    assert seen.value == np.median(values)
    assert 0.5 <= seen.level <= 1


@given(st.integers(2, 200), st.sampled_from([1.96, 2.576]))
def test_from_six_and_eight_visits_on_the_level_is_the_wanted_one(n: int, z: float) -> None:
    level = estimate(visits_of(*np.arange(1.0, n + 1)), z).level
    assert level is not None
    wanted = math.erf(z / math.sqrt(2))
    assert (level >= wanted) == (n >= (6 if z < 2 else 8))
    assert level == pytest.approx(wanted, abs=0.06) or n < 6


def test_one_visit_has_the_interval_of_its_repetitions() -> None:
    visit = Visit.of(default_rng(1).lognormal(0, 0.1, 200))
    seen = estimate([visit])
    assert (seen.low, seen.high) == visit.interval_s
    assert (seen.of, seen.level) == ("repetitions", pytest.approx(0.95, abs=1e-4))
    few = estimate([Visit.of(np.ones(5))])
    assert (few.is_known, few.level, few.n, few.half_width) == (False, None, 5, math.inf)


def test_repetitions_that_depend_on_one_another_have_no_interval_but_a_reason() -> None:
    """It would go from the lowest to the highest of 20, a hundred times the median."""
    times = np.repeat([1.0, 1.02, 1.04], [10, 9, 1])
    times[-1] = 100.0
    visit = Visit.of(times)
    assert visit.repetitions == 20 and visit.effective_repetitions < 6
    seen = estimate([visit])
    assert (seen.is_known, seen.level, seen.n) == (False, None, 20)
    (reason,) = (text for text in changes([visit]) if "depend" in text)
    assert reason.startswith("20 repetitions depend on one another and count as 1.")
    assert not any("depend" in text for text in changes([visit, visit]))
    alone = Visit.of(default_rng(4).lognormal(0, 0.1, 20))
    assert estimate([alone]).is_known and not any("depend" in text for text in changes([alone]))


@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_an_interval_of_few_repetitions_holds_its_level_where_it_is_given(rho: float) -> None:
    rng = default_rng(14)
    held = []
    for _ in range(600):
        shocks = math.sqrt(1 - rho**2) * rng.standard_normal(80)
        series = list(accumulate(shocks, lambda state, shock: rho * state + shock))
        seen = estimate([Visit.of(np.exp(0.1 * np.array(series[-20:])))])
        held += [seen.low <= 1.0 <= seen.high] if seen.is_known else []
    assert np.mean(held) >= 0.91 and len(held) > 300


@pytest.mark.parametrize(
    ("launches", "ends", "level"),
    [(3, (1.0, 3.0), 0.75), (6, (1.0, 6.0), 0.96875), (9, (2.0, 8.0), 0.9609375)],
)
def test_each_of_several_launches_counts_once_however_many_visits_it_has(
    launches: int, ends: tuple[float, float], level: float
) -> None:
    visits = [
        visit
        for launch in range(launches)
        for visit in visits_of(*[launch + 1.0] * (3 + launch), 0.1, 20.0, launch=launch)
    ]
    seen = estimate(visits)
    assert ((seen.low, seen.high), seen.of, seen.level) == (ends, "launches", level)
    assert (seen.value, seen.n) == ((launches + 1) / 2, launches)


def test_two_launches_say_no_more_about_launches_than_one() -> None:
    """As of a run that was resumed: its interval is over the visits of both."""
    both = [*visits_of(1.0, 1.1, 1.2), *visits_of(1.3, 1.4, 1.5, launch=1)]
    assert estimate(both) == estimate(visits_of(1.0, 1.1, 1.2, 1.3, 1.4, 1.5))


@pytest.mark.parametrize("noise", ["normal", "skewed"])
@pytest.mark.parametrize("between", [0.0, 0.02, 0.05, 0.2])
def test_a_rigorous_run_holds_the_truth_as_often_as_its_level_says(
    between: float, noise: str
) -> None:
    """Launches differ by `between`, visits by 1 %, repetitions by 3 %. The truth is the median of
    all launches there could be."""
    rng = default_rng(3)

    def factors(deviation: float, *shape: int) -> Series:
        normal = rng.standard_normal(shape)
        skewed = rng.exponential(1.0, shape) - math.log(2)
        return np.asarray(np.exp(deviation * (normal if noise == "normal" else skewed)))

    held = []
    for _ in range(600):
        launches = factors(between, 6, 1) * factors(0.01, 6, 3)
        launches *= np.median(factors(0.03, 6, 3, 31), axis=2)
        seen = estimate(
            [visit for number in range(6) for visit in visits_of(*launches[number], launch=number)]
        )
        held.append(seen.low <= 1.0 <= seen.high)
    assert seen.level == 0.96875
    assert np.mean(held) == pytest.approx(seen.level, abs=0.02)


# ---------------------------------------------------------------- flags


def changes_of(*times: Series) -> str:
    return "; ".join(changes([Visit.of(each) for each in times]))


def noise(rng: Generator, level: float = 1.0) -> Series:
    return np.asarray(level * rng.lognormal(0, 0.03, 100))


def test_visits_at_two_levels_are_unstable_and_the_detail_names_the_levels() -> None:
    rng = default_rng(5)
    times = [noise(rng, 2.6e-7 if index % 3 else 8.2e-7) for index in range(6)]
    assert "levels" in changes_of(*times)
    visits = [Visit.of(each) for each in times]
    assert [count for _, count in levels(visits)] == [4, 2]
    assert str(levels_text(visits)).startswith("2 levels of visits: 2")
    assert spread(visits) == pytest.approx(8.2 / 2.6, rel=0.05)


def test_visits_that_their_repetitions_explain_are_not_unstable() -> None:
    rng = default_rng(6)
    wide = [np.asarray(rng.lognormal(0, 1.0, 30)) for _ in range(6)]
    assert "levels" not in changes_of(*wide)
    assert spread([Visit.of(each) for each in wide]) > 1.2
    few = [np.array([1.0, 1.1]), np.array([2.0, 2.1])]  # too few repetitions to explain anything
    assert "levels" not in changes_of(*few)


def test_levels_are_told_by_the_interval_for_all_pairs_of_visits() -> None:
    """Intervals at 95 % of a visit's repetitions are disjoint, those for 15 pairs overlap."""

    def visit(median: float, wide: float) -> Visit:
        near = (median * 0.97, median * 1.03)
        return Visit(0, median, 100, near, (median * (1 - wide), median * (1 + wide)))

    assert len(levels([visit(1.0, 0.06), visit(1.08, 0.06)])) == 1
    assert levels([visit(1.08, 0.03), visit(1.0, 0.03)]) == [(1.0, 1), (1.08, 1)]
    times = default_rng(5).lognormal(0, 0.1, 200)
    low, high = Visit.of(times).interval_s or (math.nan, math.nan)
    widest_low, widest_high = Visit.of(times).widest_s or (math.nan, math.nan)
    assert widest_low < low < high < widest_high


def test_neighbouring_visits_make_one_level_and_one_without_an_interval_starts_none() -> None:
    steps = visits_of(1.12, 1.0, 1.04, 1.08)
    assert levels(steps) == [(1.06, 4)], "each is within 5 % of the next"
    assert levels(visits_of(2.0, 1.0, 2.02)) == [(1.0, 1), (2.01, 2)]
    for without in (0, 1):
        apart = visits_of(1.0, 2.0)
        apart[without] = replace(apart[without], widest_s=None)
        assert len(levels(apart)) == 1


def test_equal_visits_raise_no_flag_in_at_least_95_of_100_cases() -> None:
    rng = default_rng(7)
    assert sum(bool(changes_of(*(noise(rng) for _ in range(6)))) for _ in range(100)) <= 5


def test_levels_of_visits_are_not_modes_of_repetitions() -> None:
    rng = default_rng(8)
    assert "typical times" not in changes_of(noise(rng), noise(rng, 2.0), noise(rng, 1.0))
    two_modes = [np.where(rng.random(100) < 0.4, 2.0, 1.0) * noise(rng) for _ in range(6)]
    assert "typical times" in changes_of(*two_modes)


def test_two_typical_times_far_apart_are_in_the_interval_with_the_median(planned: Planned) -> None:
    rng = default_rng(15)
    record = CaseRecord()
    for _ in range(6):
        elapsed = np.where(rng.random(400) < 0.15, 35_000, 2_000_000) * rng.lognormal(0, 0.02, 400)
        stamps = np.zeros((2, 400, 2), np.int64)
        stamps[:, :, 1] = elapsed
        blocks = (Block("connect", 0, stamps[:, :1]), Block("measure", 1, stamps))
        add_visit(record, planned, Samples((0, 1), blocks, 1, "ci", 0))
    assert estimate(record.visits).half_width < 0.01
    seen = row_of(planned, record)
    assert seen.fast_mode_s == pytest.approx(35e-6, rel=0.02)
    assert seen.slow_mode_s == pytest.approx(2e-3, rel=0.02)
    assert seen.slow_share == pytest.approx(0.85, abs=0.03)
    assert seen.ci_low_s == seen.fast_mode_s < 0.1 * seen.median_s
    assert seen.ci_high_s >= seen.median_s
    assert row_of(planned, recorded(planned, 1, 2, 3)).slow_share is None


def test_the_mean_of_a_soak_lies_within_its_interval(planned: Planned) -> None:
    record = CaseRecord()
    add_visit(record, planned, replace(visit(1), operation_s=1.1e-5))
    seen = row_of(planned, record)
    assert seen.ci_low_s is not None and seen.ci_high_s is not None
    assert seen.median_s == 1.1e-5 and seen.ci_low_s < 1.1e-5 < seen.ci_high_s


def test_a_case_drifts_if_half_of_its_visits_do() -> None:
    rng = default_rng(9)
    drifting = [np.linspace(1.0, 1.3, 100) * noise(rng) for _ in range(3)]
    assert "halves" in changes_of(*drifting, *(noise(rng) for _ in range(3)))
    assert "halves" not in changes_of(*drifting[:2], *(noise(rng) for _ in range(4)))


# ---------------------------------------------------------------- whether the interval holds the
# truth

RUN_S = 30.0
PASS_S = 5.0
VISIT_S = 0.05
REPETITIONS = 60  # passes are evenly spread over a run
Machine = Callable[[Generator, Series], Series]  # the factor of the time at these instants


def calm(rng: Generator, instants: Series) -> Series:
    return np.ones_like(instants)


def regimes(rng: Generator, instants: Series) -> Series:
    """Two levels, held for some seconds each, the slow one for a quarter of the time."""
    edges = np.cumsum(rng.exponential(2.0, 400) * np.tile([3.0, 1.0], 200))
    return np.where(np.searchsorted(edges, instants) % 2, 3.0, 1.0)


def sticky(rng: Generator, instants: Series) -> Series:
    """Two states of some milliseconds, as of a scheduler."""
    edges = np.cumsum(rng.exponential(0.01, 4_000) * np.tile([4.0, 1.0], 2_000))
    return np.where(np.searchsorted(edges, instants) % 2, 1.5, 1.0)


def wandering(rng: Generator, instants: Series) -> Series:
    """Slow waves of 10 %: heat, other load."""
    phases = rng.uniform(0, 2 * np.pi, 3)
    periods_s = np.array([7.0, 19.0, 53.0])
    return np.asarray(
        1 + 0.05 * np.sin(2 * np.pi * instants[:, np.newaxis] / periods_s + phases).sum(axis=1)
    )


def rising(rng: Generator, instants: Series) -> Series:
    """Slower by 10 % from the start of the run to its end, in a straight line."""
    return np.asarray(0.95 + 0.1 * instants / RUN_S)


def transient(rng: Generator, instants: Series) -> Series:
    """Half again slower when the run begins, with a time constant of 1 s."""
    return np.asarray(1 + 0.5 * np.exp(-instants))


def simulated(machine: Machine, visits: int) -> tuple[float, float]:
    """The shares of 150 cases whose interval holds the truth, and of those that miss it where no
    change was seen."""
    rng = default_rng(10)
    held = 0
    missed = 0
    runs = 6
    cases = 25
    truth = 1.0  # most of the time, or half of it
    if machine in (regimes, wandering):
        truth = float(
            np.median(machine(default_rng(11), default_rng(12).uniform(100, 700, 20_000)))
        )
    for _ in range(runs):
        places = np.stack([rng.permutation(cases) for _ in range(visits)], axis=1)  # in each pass
        begin_s = np.arange(visits) * RUN_S / visits + places * PASS_S / cases
        instants = begin_s[..., np.newaxis] + np.linspace(0, VISIT_S, REPETITIONS)
        factors = machine(default_rng(rng.integers(1 << 32)), instants.ravel()).reshape(
            instants.shape
        )
        for times in factors * rng.lognormal(0, 0.03, instants.shape):
            each = [Visit.of(visit_times) for visit_times in times]
            seen = estimate(each)
            holds = seen.low <= truth <= seen.high
            held += holds
            missed += not holds and not changes(each)
    return held / (runs * cases), missed / (runs * cases)


@pytest.mark.parametrize(
    ("machine", "visits", "level"),
    [(calm, 3, 0.75), (regimes, 3, 0.75)]
    + [(machine, 6, 0.97) for machine in (calm, regimes, sticky, wandering, rising, transient)],
)
def test_intervals_hold_the_truth_as_often_as_their_level_says_or_the_row_does_not_claim_it(
    machine: Machine, visits: int, level: float
) -> None:
    """Two states of milliseconds within each visit are several typical times; everything else the
    interval holds."""
    held, missed = simulated(machine, visits)
    assert held >= level - (0.30 if machine is sticky else 0.08)
    assert missed <= 1 - level + 0.07
    if machine is calm:
        assert held <= level + (1 - level) / 2, "no wider than it has to be"


def test_one_visit_would_have_missed_what_six_hold() -> None:
    """The interval of repetitions in regimes of seconds: right for its moment and for nothing
    else."""
    rng = default_rng(12)
    held = []
    for _ in range(100):
        seed = rng.integers(1 << 32)
        begin_s = rng.uniform(0, 100)
        times = wandering(
            default_rng(seed), begin_s + np.linspace(0, VISIT_S, 400)
        ) * rng.lognormal(0, 0.03, 400)
        low, high = Visit.of(times).interval_s or (0.0, 0.0)
        held.append(low <= 1.0 <= high)
    assert np.mean(held) < 0.3


def test_coverage_is_the_probability_that_ranks_enclose_the_median() -> None:
    draws = np.sort(default_rng(13).random((20_000, 7)), axis=1)
    for rank in (1, 2, 3):
        held = np.mean((draws[:, rank - 1] <= 0.5) & (draws[:, 7 - rank] >= 0.5))
        assert coverage(7, rank) == pytest.approx(held, abs=0.015)


# ---------------------------------------------------------------- the record of a case

WORLD = World(0, 2, (tuple(range(2)),), (0,))
AROUND = Conditions(
    {"python": 60e-9}, {"python": 1e-6}, 8, 1, 2**20, TransportEvidence(), WORLD, ()
)
NUMBERS = (
    *(
        "median_s",
        "ci_low_s",
        "ci_high_s",
        "mean_s",
        "min_s",
        "max_s",
        "p90_s",
        "p99_s",
        "first_call_s",
        "warmup_s",
    ),
    *(
        "repetitions",
        "visits",
        "visit_medians_s",
        "visit_launches",
        "interval_of",
        "effective_repetitions",
        "lag1",
    ),
    *(
        "steady",
        "block_k",
        "operations_per_sample",
        "warnings",
        "skew_s",
    ),
)


@pytest.fixture(scope="module")
def planned() -> Planned:
    settings = settings_of("benchmark=[all_reduce]", "layout=[1x2]", "sizes=[400]")
    (planned,) = plan(settings, hosted_world(1, 2)[0], FACTS)
    return planned


def visit(seed: int) -> Samples:
    """Two ranks: a connecting repetition, a warm-up, two blocks of 60 and 40 measured repetitions
    of about 10 us."""
    rng = default_rng(seed)
    blocks = []
    first = {"measure": 0}
    for index, (phase, n) in enumerate(
        [("connect", 1), ("warmup", 5), ("measure", 60), ("measure", 40)]
    ):
        elapsed = rng.integers(9_000, 11_000, (2, n)) * (1000 if phase == "connect" else 1)
        stamps = np.stack([np.zeros_like(elapsed), elapsed], axis=2)
        blocks.append(Block(phase, index, stamps, first.get(phase, 0)))
        first["measure"] += n if phase == "measure" else 0
    return Samples((0, 1), tuple(blocks), 1, "ci", 0, spent_s=0.5, warmup_s=0.1)


def recorded(planned: Planned, *seeds: int) -> CaseRecord:
    """A record of one start."""
    record = CaseRecord()
    for seed in seeds:
        add_visit(record, planned, visit(seed))
    return record


def row_of(planned: Planned, record: CaseRecord) -> Row:
    return row(RowFacts(planned, AROUND), planned.case, record)


def read_back(planned: Planned, record: CaseRecord, launches: list[float]) -> EarlierVisits:
    """As cli.recorded_visits finds it in the files."""
    values = replace(row_of(planned, record), visit_launches=tuple(launches))
    return EarlierVisits(values, tuple(visit.times for visit in record.visits), 0, 0, {})


def test_a_continued_record_gives_the_row_of_an_unbroken_one(planned: Planned) -> None:
    whole = recorded(planned, 1, 2, 3)
    later = CaseRecord(earlier_visits(read_back(planned, recorded(planned, 1, 2), [0, 0])))
    assert (later.visits[0].block_k, later.spent_s(1)) == (1, 0.0)
    add_visit(later, planned, visit(3), launch=1)
    assert later.spent_s(1) == 0.5 + 0.1, "the time of this launch with its warm-up"
    seen = row_of(planned, later)
    wanted = replace(row_of(planned, whole), visit_launches=(0, 0, 1))
    for name in NUMBERS:
        value = getattr(wanted, name)
        is_exact = isinstance(value, str | tuple)
        assert getattr(seen, name) == (value if is_exact else pytest.approx(value)), name


@pytest.mark.parametrize("before", [1, 2])
def test_visits_blocks_and_repetitions_are_numbered_through_all_starts(
    before: int, planned: Planned
) -> None:
    numbering = Numbering()
    stored = []
    for seed in range(before):
        stored.append(numbering.numbered(visit(seed)))
        numbering = numbering.after(stored[-1])
    read = EarlierVisits(case_row(), (), before, 4 * before, numbering.repetitions)
    fewer = replace(read, last=0, blocks=0, repetitions={"measure": 7})
    assert Numbering.of([fewer, read]) == numbering, "of several rows the largest"
    third = numbering.numbered(visit(3))
    first, *_ = blocks = third.blocks
    assert (first.phase, first.index, first.first) == ("connect", 4 * before, before)
    assert [block.first for block in blocks if block.phase == "measure"] == [
        100 * before,
        100 * before + 60,
    ]
    (part,) = row_samples(planned, third, "run", numbering.visit + 1)
    assert set(part.table["visit"]) == {before + 1}
    assert max(part.table["repetition"]) == 100 * before + 99


def test_retransmits_are_those_of_measured_repetitions_of_all_visits_and_ranks(
    planned: Planned,
) -> None:
    def readings(rank: int, totals: list[int]) -> list[Counts]:
        counter = MeasuredCounters()
        phases = ("connect", "warmup", "measure", "measure")
        series = [
            counter.reading(
                {"tcp.peer1.stream0.retransmits": total, "tcp.peer1.stream1.retransmits": 1}, phase
            )
            for phase, total in zip(phases, totals, strict=True)
        ]
        return [Counts(rank, t_ns, reading) for t_ns, reading in enumerate(series)]

    record = CaseRecord()
    counts = (*readings(0, [0, 3, 5, 8]), *readings(1, [9, 9, 9, 10]))
    add_visit(record, planned, replace(visit(1), counts=counts))
    counts = (*readings(0, [8, 20, 20, 20]), *readings(1, [10, 10, 12, 17]))
    add_visit(record, planned, replace(visit(2), counts=counts))
    values = row_of(planned, record)
    assert values.retransmits == (8 - 3) + (10 - 9) + 0 + (17 - 10)
    later = CaseRecord(earlier_visits(read_back(planned, record, [0, 0])))
    add_visit(later, planned, replace(visit(3), counts=tuple(readings(0, [1, 1, 1, 3]))), 1)
    assert row_of(planned, later).retransmits == values.retransmits + 2
    assert row_of(planned, recorded(planned, 1)).retransmits is None, "a backend without them"


def test_visits_of_the_present_launch_count_for_its_rule_and_earlier_ones_do_not(
    planned: Planned,
) -> None:
    rule = VisitRule(target=0.2, z=1.96, least=2, max_repetitions=10**6, budget_s=10.0)
    earlier = read_back(planned, recorded(planned, 1, 2), [1, 1])
    reasons: dict[int, Any] = {}
    for launch in (0, 1, 2):  # both visits are of launch 1
        record = CaseRecord(earlier_visits(earlier))
        reasons[launch] = rule.stop_reason(record, launch, "ci")
        assert record.spent_s(launch) == pytest.approx(0.002 if launch < 2 else 0, rel=0.1)
    assert reasons == {0: "ci", 1: "ci", 2: INTERRUPTED}


def test_the_interval_of_the_rule_is_over_all_launches(planned: Planned) -> None:
    rule = VisitRule(target=0.1, z=1.96, least=2, max_repetitions=10**6, budget_s=10.0)
    calm = read_back(planned, recorded(planned, 1, 2), [0, 0])
    slow = replace(calm, times=tuple(2 * times for times in calm.times))
    for earlier, reason in ((calm, "ci"), (slow, INTERRUPTED)):
        record = CaseRecord(earlier_visits(earlier))
        for seed in (3, 4):
            add_visit(record, planned, visit(seed), launch=1)
        assert rule.stop_reason(record, 1, "ci") == reason


def test_a_case_whose_samples_are_lost_begins_anew() -> None:
    assert earlier_visits(EarlierVisits(case_row(), (), last=2, blocks=8, repetitions={})) == []


def test_what_one_visit_has_shown_stays_in_the_warnings(planned: Planned) -> None:
    """By events of a GPU, `overhead` says that it waited for its host."""
    earlier = read_back(planned, recorded(planned, 1), [0])
    warnings = ("throttled", "overhead", "skewed")
    shown = replace(earlier.row, timer="device_event", warnings=warnings)
    record = CaseRecord(earlier_visits(replace(earlier, row=shown)))
    lasting = {"throttled", "overhead"}
    assert lasting <= set(row_of(planned, record).warnings), "without a new visit"
    add_visit(record, planned, visit(2))
    warnings = row_of(planned, record).warnings
    assert lasting <= set(warnings) and "skewed" not in warnings


def test_a_resumed_run_does_not_repeat_that_an_earlier_timer_was_slow(planned: Planned) -> None:
    """Each start finds out anew what its timer and a call take."""
    slow_timer = RowFacts(planned, replace(AROUND, empty_sample_s={"python": 1.0}))
    record = recorded(planned, 1, 2)
    slow = row(slow_timer, planned.case, record)
    assert "overhead" in slow.warnings
    earlier = EarlierVisits(slow, tuple(visit.times for visit in record.visits), 0, 0, {})
    resumed = CaseRecord(earlier_visits(earlier))
    assert "overhead" in row(slow_timer, planned.case, resumed).warnings, "it is as slow again"
    add_visit(resumed, planned, visit(3), launch=1)
    assert "overhead" not in row_of(planned, resumed).warnings


def test_a_visit_that_was_still_running_is_replaced_by_the_longer_one(planned: Planned) -> None:
    """A soak; its later samples hold all repetitions, and only later counters."""
    record = CaseRecord()
    throttled = (Counts(0, 1, {GPU_THROTTLE_REASONS: 4.0}),)
    add_visit(record, planned, replace(visit(1), stop_reason="running", counts=throttled))
    add_visit(record, planned, replace(visit(2), stop_reason="duration"))
    assert row_of(planned, record).visits == 1
    assert record.visits[0].is_throttled
    add_visit(record, planned, visit(3))
    assert row_of(planned, record).visits == 2


@pytest.mark.parametrize("worst", [0, 1, 2])
def test_what_disturbs_a_gpu_is_that_of_all_visits(planned: Planned, worst: int) -> None:
    """The largest share of a rank in a visit."""

    def bound(rank: int, *totals: float) -> list[Counts]:
        return [Counts(rank, at, {MEASURED_HOST_BOUND: total}) for at, total in enumerate(totals)]

    record = CaseRecord()
    for number in range(3):
        samples = replace(
            visit(number),
            repetitions=100,
            counts=(
                *bound(0, 1, 7 if number == worst else 2),
                *bound(1, 1, 1),
                Counts(0, 9, {GPU_THROTTLE_REASONS: 4.0 if number == worst else 0.0}),
            ),
        )
        add_visit(record, planned, samples)
    values = row_of(planned, record)
    assert [visit.is_host_bound for visit in record.visits].index(True) == worst
    assert {"overhead", "throttled"} <= set(values.warnings)


@pytest.mark.parametrize(
    ("shares", "row_share", "is_flagged"),
    [
        ([(0.01, 0.04), (0.02, 0.05), (0.0, 0.9)], 0.05, False),
        ([(0.01, 0.04), (0.06, 0.01), (0.0, 0.9)], 0.06, True),
        ([(), (), ()], None, False),
    ],
)
def test_a_number_of_ranks_that_waited_for_a_core_is_flagged(
    planned: Planned, shares: list[tuple[float, ...]], row_share: float | None, is_flagged: bool
) -> None:
    """The share of the rank that waited longest, of the visit in the middle; also after another
    start of the run."""
    record = CaseRecord()
    for number, of_ranks in enumerate(shares):
        counts = tuple(Counts(rank, 1, {CORE_WAIT: share}) for rank, share in enumerate(of_ranks))
        add_visit(record, planned, replace(visit(number), counts=counts))
    values = row_of(planned, record)
    assert values.core_wait_share == row_share
    assert ("waited" in values.warnings) == is_flagged
    again = CaseRecord(earlier_visits(read_back(planned, record, [0, 1, 2])))
    assert row_of(planned, again).core_wait_share == row_share


@pytest.mark.parametrize("thinned", [0, 1, 2])
def test_a_visit_of_which_only_some_times_were_kept_counts_all_its_repetitions(
    planned: Planned, thinned: int
) -> None:
    record = CaseRecord()
    for number in range(3):
        repetitions = 400 if number == thinned else 100
        add_visit(record, planned, replace(visit(number), repetitions=repetitions))
    values = row_of(planned, record)
    assert values.repetitions == 600


@pytest.mark.parametrize("long", [0, 1, 2])
def test_of_a_visit_that_is_too_long_evenly_spaced_times_are_kept(
    planned: Planned, long: int
) -> None:
    record = CaseRecord()
    for number in range(3):
        blocks = visit(number).blocks if number == long else visit(number).blocks[:3]
        add_visit(record, planned, replace(visit(number), blocks=blocks), kept=60)
    assert [len(visit.times) for visit in record.visits] == [
        50 if number == long else 60 for number in range(3)
    ]
    values = row_of(planned, record)
    assert values.repetitions == 100 + 60 + 60


@pytest.mark.parametrize("unsteady", [0, 1, 2])
def test_one_warm_up_at_its_limit_makes_the_case_unsteady(planned: Planned, unsteady: int) -> None:
    record = CaseRecord()
    for seed in range(3):
        add_visit(record, planned, replace(visit(seed), steady=seed != unsteady, warmup_s=0.25))
    values = row_of(planned, record)
    assert (values.steady, values.warmup_s) == (False, 3 * 0.25)
    assert record.spent_s(0) == 3 * (0.5 + 0.25)
