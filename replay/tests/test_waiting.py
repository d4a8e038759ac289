"""Who waits for whom: planted truths, on clocks of one host and of several."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from loops import for_each
from numpy.random import Generator
from numpy.typing import NDArray

from commbench_replay.operations import RankGroup, RankTrace, RecordedCall
from commbench_replay.training_job import TrainingJob, training_job
from commbench_replay.waiting import Late, Waiting, binomial_tail, late_rank, waiting_of

RANKS = 4
STEPS = 5
CALLS = 8  # a step
JOBS = 300
GROUP = RankGroup("0", tuple(range(RANKS)), RANKS)
NS = 1e9
Times = NDArray[np.float64]  # [calls of all steps, ranks], seconds


def arrivals(random: Generator, spread_s: float = 1e-3) -> Times:
    """When each rank calls each operation; no rank is late more often than another."""
    begins = 0.1 * np.arange(STEPS * CALLS)[:, None]
    return begins + random.exponential(spread_s, (STEPS * CALLS, RANKS))


def traced(begins: Times, ends: Times, operation: str = "all_reduce") -> TrainingJob:
    """The job in whose traces calls begin and end so, on the clock of each rank."""
    traces = []
    for rank in range(RANKS):
        calls = tuple(
            RecordedCall(
                rank, GROUP, place, operation, "float32", 4, 4,
                start_ns=round(NS * begin), end_ns=round(NS * end),
            )
            for place, (begin, end) in enumerate(zip(begins[:, rank], ends[:, rank], strict=True))
        )  # fmt: skip
        traces.append(RankTrace(f"rank{rank}", "t", rank, calls, RANKS, (10**9,) * STEPS))
    return training_job(traces)


def ended(begins: Times, random: Generator, apart_s: float) -> Times:
    """When each rank ends an operation of 2 ms, and up to `apart_s` more."""
    last = begins.max(axis=1, keepdims=True)
    return last + 2e-3 + apart_s * random.random(begins.shape)


def true_waiting_s(begins: Times) -> float:
    """Of a step, the mean over the ranks."""
    return float((begins.max(axis=1, keepdims=True) - begins).mean(axis=1).sum()) / STEPS


def waiting(job: TrainingJob) -> Waiting:
    found = waiting_of(job)
    assert found is not None
    return found


@for_each("apart_s", [2e-6, 50e-6, 9e-3])
def test_the_interval_of_the_waiting_holds_the_truth_however_far_apart_ranks_end(
    apart_s: float,
) -> None:
    random = np.random.default_rng(1)
    for _ in range(40):
        begins = arrivals(random)
        found = waiting(traced(begins, ended(begins, random, apart_s)))
        rounding_s = CALLS * 1e-9
        assert found.seconds.low - rounding_s <= true_waiting_s(begins)
        assert true_waiting_s(begins) <= found.seconds.high + rounding_s
        assert found.seconds.high - found.seconds.low <= CALLS * apart_s
        assert not found.is_least


def test_clocks_of_several_hosts_do_not_widen_the_interval() -> None:
    random = np.random.default_rng(1)
    begins = arrivals(random)
    ends = ended(begins, random, apart_s=2e-6)
    clocks_s = np.array([0.0, 1.0, 3600.0, 7.0])
    found = waiting(traced(begins + clocks_s, ends + clocks_s))
    assert found.seconds.value == pytest.approx(true_waiting_s(begins), rel=0.01)
    assert found.seconds.high - found.seconds.low < CALLS * 5e-6


def test_waiting_is_at_least_that_where_it_is_not_known_of_all() -> None:
    random = np.random.default_rng(1)
    begins = arrivals(random)
    ends = ended(begins, random, apart_s=0.0)
    job = traced(begins, ends)
    half = len(begins) // 2
    rooted = traced(begins, ends, "broadcast")
    mixed = replace(job, collectives=(*job.collectives[:half], *rooted.collectives[half:]))
    assert waiting(mixed).is_least and waiting(mixed).seconds.high < waiting(job).seconds.low
    assert waiting_of(rooted) is None
    some_ranks = [replace(each, complete=False) for each in job.collectives]
    assert waiting(replace(job, collectives=tuple(some_ranks))).is_least


def late_in(begins: Times) -> Late | None:
    ends = np.broadcast_to(begins.max(axis=1, keepdims=True) + 2e-3, begins.shape)
    return late_rank(traced(begins, ends).collectives)


def test_a_rank_is_named_by_chance_in_two_of_a_hundred_jobs_at_most() -> None:
    random = np.random.default_rng(1)
    named = sum(late_in(arrivals(random)) is not None for _ in range(JOBS))
    assert named <= 0.02 * JOBS + 2 * np.sqrt(0.02 * JOBS)


@for_each(
    ("calls", "delay_s"),
    [
        (range(0, STEPS * CALLS, CALLS), 20e-3),  # once a step, as for its data
        (range(STEPS * CALLS), 2e-3),  # in each call, as slow hardware
    ],
)
def test_a_planted_late_rank_is_named_with_what_it_costs(calls: range, delay_s: float) -> None:
    random = np.random.default_rng(1)
    right = 0
    for _ in range(JOBS):
        begins = arrivals(random, spread_s=0.3e-3)
        begins[calls, 2] += delay_s
        late = late_in(begins)
        if late is not None and late.rank == 2:
            right += 1
            assert late.waiting_ns == pytest.approx(NS * delay_s * len(calls), rel=0.3)
            assert late.share > 0.6
    assert right >= 0.95 * JOBS


def test_a_wait_in_several_calls_at_once_costs_once() -> None:
    begins = np.repeat(0.1 * np.arange(STEPS), CALLS)[:, None] + np.zeros(RANKS)
    begins[:, 2] += 20e-3
    late = late_in(begins)
    assert late is not None and late.waiting_ns == pytest.approx(NS * 20e-3 * STEPS)


def test_ranks_that_come_together_are_not_late() -> None:
    assert late_in(np.zeros((40, RANKS))) is None
    close = np.zeros((40, RANKS))
    close[:, 1] = 5e-6
    assert late_in(close) is None


@for_each(("least", "n", "p"), [(0, 5, 0.2), (5, 8, 1 / 8), (20, 20, 0.5), (3, 4000, 1e-3)])
def test_a_binomial_tail_is_the_sum_of_its_terms(least: int, n: int, p: float) -> None:
    below = sum(comb(n, count) * p**count * (1 - p) ** (n - count) for count in range(least))
    assert binomial_tail(least, n, p) == pytest.approx(1 - below, abs=1e-9)
