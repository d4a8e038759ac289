"""Steps are found in published measurements and planted truths, and never in noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from version_rows import found_in, needs_published, planted, published, results_of

from commbench.features.versions import steps
from commbench.features.versions.series import all_series
from commbench.features.versions.splits import Measurements
from commbench.features.versions.steps import TooFew, find_steps


@needs_published
@pytest.mark.parametrize(("count", "most"), [(10, 1), pytest.param(100, 5, marks=pytest.mark.long)])
def test_with_labels_permuted_within_each_case_nothing_is_found(
    count: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PERMUTATIONS", steps.LEAST_PERMUTATIONS)
    series = all_series(results_of(published()), "library_version")
    rng = np.random.default_rng(1)
    found = 0
    for seed in range(count):
        permuted = [replace(each, places=rng.permuted(each.places)) for each in series.measurements]
        found += bool(find_steps(permuted, series.neighbours, seed))
    assert found <= most


def test_a_planted_step_is_found_where_it_is_and_nothing_beside_it() -> None:
    (finding,) = found_in(planted(1.3, 3, 0.02, 0))
    assert finding.is_certain and len(finding.steps) == 4
    assert {(step.before, step.after) for step in finding.steps} == {(2, 3)}, "1.10 is after 1.9"
    assert all(1.2 < step.ratio < 1.4 for step in finding.steps)
    assert all(step.counts == (9, 6) for step in finding.steps)


@pytest.mark.parametrize("count", [10, pytest.param(20, marks=pytest.mark.long)])
def test_what_all_series_of_a_run_have_in_common_is_no_step_of_theirs(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is busy in one run has all of its series slower, and all agree."""
    monkeypatch.setattr(steps, "PERMUTATIONS", steps.LEAST_PERMUTATIONS)
    found = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        rows = planted(1.0, 2, 0.01, seed)
        busy = {run: float(np.exp(rng.normal(0, 0.2))) for run in {row.run_id for row in rows}}
        rows = [replace(row, median_s=busy[row.run_id] * row.median_s) for row in rows]
        found += bool(found_in(rows))
    assert found <= 1


def test_few_series_of_few_runs_are_never_certain() -> None:
    """Two runs of two versions are in the order of a step in a third of all cases."""
    rows = planted(1.0, 2, 0.01, 0)
    few = [row for row in rows if row.benchmark == "all_reduce" and row.message_bytes < 2**22]
    few = [row for row in few if row.library_version in ("1.9", "2.0")]
    slow = {"2.0-0": 1.2, "2.0-1": 1.2}
    slower = [replace(row, median_s=slow.get(row.run_id, 1.0) * row.median_s) for row in few]
    assert not any(finding.is_certain for finding in found_in(slower))
    one = [
        replace(row, median_s=(2.0 if row.message_bytes == 2**18 else 1.0) * row.median_s)
        if row.library_version == "2.0"
        else row
        for row in few
    ]
    (finding,) = found_in(one)
    assert finding.too_few == TooFew(2, 2, 5)


def test_few_series_of_many_runs_may_be_certain() -> None:
    rows = [row for row in planted(1.3, 5, 0.02, 0) if row.library_version in ("1.9", "2.0")]
    few = [row for row in rows if row.benchmark == "all_reduce" and row.message_bytes < 2**22]
    (finding,) = found_in(few)
    assert finding.is_certain and len(finding.steps) == 2


@pytest.mark.parametrize(("count", "most"), [(10, 1), pytest.param(30, 2, marks=pytest.mark.long)])
def test_noise_alone_has_no_step(count: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PERMUTATIONS", steps.LEAST_PERMUTATIONS)
    found = [bool(found_in(planted(1.0, 3, 0.05, seed))) for seed in range(count)]
    assert sum(found) <= most, "1 % of data"


def test_one_measurement_on_a_side_is_not_certain_however_far() -> None:
    rows = planted(1.0, 4, 0.01, 0)
    kept = [row for row in rows if row.library_version == "2.0" or row.run_id == "1.9-0"]
    slow = [replace(row, median_s=3 * row.median_s) if "1.9" in row.run_id else row for row in kept]
    assert not any(finding.is_certain for finding in found_in(slow))


def test_the_number_of_measurements_may_differ_between_series() -> None:
    rng = np.random.default_rng(0)
    every = [
        Measurements(
            np.exp(0.01 * rng.normal(size=count)) * np.where(np.arange(count) < 4, 1.0, 2.0),
            (np.arange(count) >= 4).astype(np.int64),
            [str(number) for number in range(count)],
        )
        for count in (8, 9, 10, 11)
    ]
    (finding,) = find_steps(every, [(0, 1), (1, 2), (2, 3)])
    assert len(finding.steps) == 4 and finding.is_certain


def stepping(series: int, values: int, later: int, runs: int, factor: float) -> list[Measurements]:
    """Series of the same runs; the `later` last values take `factor` times as long."""
    rng = np.random.default_rng(0)
    places = np.repeat(np.arange(values), runs)
    slow = np.where(places >= values - later, factor, 1.0)
    names = [str(number) for number in range(places.size)]
    return [
        Measurements(slow * np.exp(0.01 * rng.normal(size=places.size)), places, names)
        for _ in range(series)
    ]


@pytest.mark.parametrize(
    ("values", "later", "needed"), [(2, 1, 5), (3, 1, 4), (4, 2, 3), (5, 2, 2), (5, 1, 3)]
)
@pytest.mark.parametrize("series", [1, 3])
def test_with_the_runs_that_are_asked_for_the_step_is_found(
    series: int, values: int, later: int, needed: int
) -> None:
    """Of equal runs 2 / C(values n, later n) of the orders have the largest step."""
    edges = [*pairwise(range(series))]
    (found,) = find_steps(stepping(series, values, later, needed, 1.5), edges)
    assert found.too_few is None and len(found.steps) == series
    if needed > 2:  # else no noise is known
        (few,) = find_steps(stepping(series, values, later, needed - 1, 1.5), edges)
        assert few.too_few == TooFew(needed - 1, needed - 1, needed)
        assert {step.after for step in few.steps} == {values - later} and not few.is_certain


def test_one_series_of_thirty_may_have_too_few_runs() -> None:
    rows = planted(1.0, 3, 0.01, 0)
    kept = [row for row in rows if row.library_version in ("1.11", "1.12", "2.0")]
    slow = [
        replace(row, median_s=1.5 * row.median_s)
        if (row.benchmark, row.message_bytes, row.library_version) == ("broadcast", 2**20, "2.0")
        else row
        for row in kept
    ]
    (finding,) = found_in(slow)
    assert finding.too_few == TooFew(3, 3, 4)


@pytest.mark.long
@pytest.mark.parametrize("runs", [2, 3])
def test_noise_is_certain_no_more_often_than_promised(runs: int) -> None:
    every = [found_in(planted(1.0, runs, 0.05, seed)) for seed in range(200)]
    certain = sum(any(finding.is_certain for finding in found) for found in every)
    assert certain <= 5, "at 1 % of data more than 5 of 200 are seen in 1.6 %"
