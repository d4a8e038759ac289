"""The record of a case: that a later start continues it as if there had been one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest
from composed import FACTS, settings_of
from numpy.random import default_rng

from commbench.core.case import Planned, World
from commbench.measure.case_record import CaseRecord
from commbench.measure.conditions import Conditions
from commbench.measure.counters import MeasuredCounters
from commbench.measure.plan import plan
from commbench.measure.rows import row, sample_table
from commbench.measure.samples import (
    GPU_THROTTLE_REASONS,
    MEASURED_HOST_BOUND,
    Block,
    Counts,
    Samples,
)
from commbench.measure.time_limits import VisitRule
from commbench.measure.transports import TransportEvidence
from commbench.results.columns import INTERRUPTED
from commbench.world.control import hosted_world
from commbench.world.recovery import EarlierVisits

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
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
        "visit_segments",
        "interval_of",
        "effective_repetitions",
        "lag1",
    ),
    *(
        "steady",
        "block_k",
        "operations_per_sample",
        "warnings",
        "late_repetitions",
        "clock_error_s",
        "skew_s",
    ),
)


@pytest.fixture(scope="module")
def job() -> Planned:
    settings = settings_of("benchmark=[all_reduce]", "layout=[1x2]", "sizes=[400]")
    (job,) = plan(settings, hosted_world(1, 2)[0], FACTS)
    return job


def visit(seed: int, late: int | None = None) -> Samples:
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
    return Samples(
        (0, 1), tuple(blocks), 1, "ci", 0, spent_s=0.5, warmup_s=0.1, late_repetitions=late
    )


def recorded(job: Planned, *seeds: int) -> tuple[CaseRecord, list[Samples]]:
    """A record of one start, and the samples as they are stored."""
    record = CaseRecord()
    return record, [record.add(job, visit(seed, late=seed)) for seed in seeds]


def read_back(
    job: Planned, record: CaseRecord, stored: list[Samples], segments: list[float]
) -> EarlierVisits:
    """As cli.earlier_visits finds it in the files."""
    values = row(job, record, AROUND, STARTED) | {"visit_segments": segments}
    blocks = [block for samples in stored for block in samples.blocks]
    ends = {block.phase: block.first + block.stamps.shape[1] for block in blocks}
    return EarlierVisits(
        values, tuple(record.times), record.last_visit, 1 + max(b.index for b in blocks), ends
    )


def test_a_continued_record_gives_the_row_of_an_unbroken_one(job: Planned) -> None:
    whole, stored = recorded(job, 1, 2, 3)
    earlier, before = recorded(job, 1, 2)
    later = CaseRecord()
    later.continue_after(read_back(job, earlier, before, [0, 0]), launch=1)
    assert (later.block_k, later.spent_s) == (1, 0.0)
    third = later.add(job, visit(3, late=3), segment=1)
    assert later.spent_s == 0.5 + 0.1, "the time of this launch with its warm-up"
    seen, wanted = (row(job, record, AROUND, STARTED) for record in (later, whole))
    wanted["visit_segments"] = [0, 0, 1]
    for name in NUMBERS:
        assert seen[name] == (
            wanted[name] if isinstance(wanted[name], str | list) else pytest.approx(wanted[name])
        ), name
    tables = [
        sample_table(job, samples, "run", record.last_visit)
        for record, samples in ((later, third), (whole, stored[-1]))
    ]
    assert all(
        (tables[0][name] == tables[1][name]).all()
        for name in ("block", "repetition", "visit", "elapsed_ns")
    )
    assert set(tables[0]["visit"]) == {3}


def test_retransmits_are_those_of_measured_repetitions_of_all_visits_and_ranks(
    job: Planned,
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
    record.add(
        job, replace(visit(1), counts=(*readings(0, [0, 3, 5, 8]), *readings(1, [9, 9, 9, 10])))
    )
    record.add(
        job,
        replace(visit(2), counts=(*readings(0, [8, 20, 20, 20]), *readings(1, [10, 10, 12, 17]))),
    )
    values = row(job, record, AROUND, STARTED)
    assert values["retransmits"] == (8 - 3) + (10 - 9) + 0 + (17 - 10)
    later = CaseRecord()
    later.continue_after(read_back(job, record, [visit(1), visit(2)], [0, 0]), launch=1)
    later.add(job, replace(visit(3), counts=tuple(readings(0, [1, 1, 1, 3]))), segment=1)
    assert row(job, later, AROUND, STARTED)["retransmits"] == values["retransmits"] + 2
    assert row(job, recorded(job, 1)[0], AROUND, STARTED)["retransmits"] is None, (
        "a backend that counts none"
    )


def test_visits_of_the_present_launch_count_for_its_rule_and_earlier_ones_do_not(
    job: Planned,
) -> None:
    rule = VisitRule(target=0.2, z=1.96, least=2, max_repetitions=10**6, budget_s=10.0)
    earlier, stored = recorded(job, 1, 2)
    reasons: dict[int, Any] = {}
    for launch in (0, 1, 2):  # both visits are of segment 1
        record = CaseRecord()
        record.continue_after(read_back(job, earlier, stored, [1, 1]), launch)
        record.decide(rule, launch, "ci")
        reasons[launch] = record.stop_reason
        assert record.spent_s == pytest.approx(0.002 if launch < 2 else 0, rel=0.1)
    assert reasons == {0: "ci", 1: "ci", 2: INTERRUPTED}


def test_the_interval_of_the_rule_is_over_all_launches(job: Planned) -> None:
    rule = VisitRule(target=0.1, z=1.96, least=2, max_repetitions=10**6, budget_s=10.0)
    calm, stored = recorded(job, 1, 2)
    slow = replace(
        read_back(job, calm, stored, [0, 0]), times=tuple(2 * times for times in calm.times)
    )
    for earlier, reason in ((read_back(job, calm, stored, [0, 0]), "ci"), (slow, INTERRUPTED)):
        record = CaseRecord()
        record.continue_after(earlier, launch=1)
        for seed in (3, 4):
            record.add(job, visit(seed), segment=1)
        record.decide(rule, 1, "ci")
        assert record.stop_reason == reason


def test_a_case_that_begins_anew_keeps_its_samples_apart(job: Planned) -> None:
    record = CaseRecord()
    record.continue_after(
        EarlierVisits({}, (), last=2, blocks=8, repetitions={"measure": 200, "warmup": 10}),
        launch=0,
    )
    assert (record.visits, record.stop_reason, record.block_k) == ([], INTERRUPTED, 1)
    samples = record.add(job, visit(1))
    table = sample_table(job, samples, "run", record.last_visit)
    assert (min(table["block"]), set(table["visit"]), max(table["repetition"])) == (8, {3}, 299)
    assert len(record.visits) == 1 and record.first_call_s is not None


def test_what_one_visit_has_shown_stays_in_the_warnings(job: Planned) -> None:
    earlier, stored = recorded(job, 1)
    visits = read_back(job, earlier, stored, [0])
    visits = replace(visits, row={**visits.row, "warnings": ["throttled", "thinned", "multimodal"]})
    record = CaseRecord()
    record.continue_after(visits, launch=0)
    assert {"throttled", "thinned"} <= set(row(job, record, AROUND, STARTED)["warnings"]), (
        "without a new visit"
    )
    record.add(job, visit(2))
    warnings = row(job, record, AROUND, STARTED)["warnings"]
    assert {"throttled", "thinned"} <= set(warnings) and "multimodal" not in warnings


@pytest.mark.parametrize("worst", [0, 1, 2])
def test_errors_of_the_clock_late_starts_and_what_disturbs_a_gpu_are_those_of_all_visits(
    job: Planned, worst: int
) -> None:
    """The largest error, all late starts, and the largest share of a rank in a visit."""

    def bound(rank: int, *totals: float) -> list[Counts]:
        return [Counts(rank, at, {MEASURED_HOST_BOUND: total}) for at, total in enumerate(totals)]

    record = CaseRecord()
    for number in range(3):
        samples = replace(
            visit(number, late=number + 1),
            clock_error_s=4e-6 if number == worst else 1e-6,
            repetitions=100,
            counts=(
                *bound(0, 1, 7 if number == worst else 2),
                *bound(1, 1, 1),
                Counts(0, 9, {GPU_THROTTLE_REASONS: 4.0 if number == worst else 0.0}),
            ),
        )
        record.add(job, samples)
    assert (record.clock_error_s, record.late_repetitions) == (4e-6, 1 + 2 + 3)
    assert record.host_bound_share == 0.07
    assert record.throttle_masks == {0, 4}


@pytest.mark.parametrize("thinned", [0, 1, 2])
def test_a_visit_of_which_only_some_times_were_kept_counts_all_its_repetitions(
    job: Planned, thinned: int
) -> None:
    record = CaseRecord()
    for number in range(3):
        record.add(job, replace(visit(number), repetitions=400 if number == thinned else 100))
    values = row(job, record, AROUND, STARTED)
    assert (values["repetitions"], record.repetitions) == (600, 600)
    assert "thinned" in values["warnings"]
    whole = row(job, recorded(job, 1, 2)[0], AROUND, STARTED)
    assert whole["repetitions"] == 200 and "thinned" not in whole["warnings"]


@pytest.mark.parametrize("long", [0, 1, 2])
def test_of_a_visit_that_is_too_long_evenly_spaced_times_are_kept(job: Planned, long: int) -> None:
    record = CaseRecord(kept=60)
    for number in range(3):
        blocks = visit(number).blocks
        record.add(job, replace(visit(number), blocks=blocks if number == long else blocks[:3]))
    assert [len(times) for times in record.times] == [
        50 if number == long else 60 for number in range(3)
    ]
    assert record.thinned and record.repetitions == 100 + 60 + 60


@pytest.mark.parametrize(
    ("passes", "disturbed"),
    [((), False), ((1,), False), ((1, 4), True), ((1, 5), False), ((5, 6, 7), False)],
)
def test_a_case_is_disturbed_if_half_of_its_visits_in_this_start_were(
    job: Planned, passes: tuple[int, ...], disturbed: bool
) -> None:
    """Three visits of an earlier start, then four in passes 1 to 4 of this one."""
    record = CaseRecord()
    for number in range(7):
        record.add(job, visit(number), segment=int(number >= 3))
    assert record.disturbed(frozenset(passes)) is disturbed


@pytest.mark.parametrize("unsteady", [0, 1, 2])
def test_one_warm_up_at_its_limit_makes_the_case_unsteady(job: Planned, unsteady: int) -> None:
    record = CaseRecord()
    for seed in range(3):
        record.add(job, replace(visit(seed), steady=seed != unsteady, warmup_s=0.25))
    assert not record.steady
    assert (record.warmup_s, record.spent_s) == (3 * 0.25, 3 * (0.5 + 0.25))
