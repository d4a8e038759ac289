"""The repetitions of a soak by intervals of time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray

from commbench.features.streams.intervals import StartIntervals, StreamIntervals
from commbench.measure.samples import Counts

MS = 1_000_000
BEGIN = 7 * 10**15  # of the clock of some machine


def stamps(*ends_ms: float, begin_ms: float = 0.0) -> NDArray[np.int64]:
    """Repetitions that follow one another."""
    edges = (np.array([begin_ms, *ends_ms]) * MS).astype(np.int64) + BEGIN
    return np.stack([edges[:-1], edges[1:]], axis=1)


def seen(counts: list[Counts]) -> list[tuple[int, float, float]]:
    """ms since the begin, repetitions, busy ms."""
    return [
        (
            (each.t_ns - BEGIN) // MS,
            each.values["interval.repetitions"],
            each.values["interval.busy_s"] * 1e3,
        )
        for each in counts
    ]


def test_a_repetition_counts_in_each_interval_by_its_share() -> None:
    intervals = StreamIntervals(rank=1, interval_s=0.01)
    assert seen(intervals.add(stamps(4, 16, 20))) == [
        (0, pytest.approx(1.5), pytest.approx(10)),
        (10, pytest.approx(1.5), pytest.approx(10)),
    ]
    assert intervals.close() == []


def test_a_long_repetition_fills_the_intervals_that_it_spans() -> None:
    intervals = StreamIntervals(1, 0.01)
    counts = intervals.add(stamps(35)) + intervals.close()
    assert [share for _, share, _ in seen(counts)] == pytest.approx([2 / 7, 2 / 7, 2 / 7, 1 / 7])
    assert [busy for *_, busy in seen(counts)] == pytest.approx([10, 10, 10, 5])


def test_the_time_between_two_blocks_is_not_busy() -> None:
    intervals = StreamIntervals(1, 0.01)
    counts = intervals.add(stamps(3, 6)) + intervals.add(stamps(11, begin_ms=8))
    counts += intervals.close()
    assert seen(counts) == [
        (0, pytest.approx(2 + 2 / 3), pytest.approx(8)),
        (10, pytest.approx(1 / 3), pytest.approx(1)),
    ]


def test_nothing_is_lost_however_the_blocks_are_cut() -> None:
    ends = np.cumsum(default_rng(0).uniform(0.1, 30, 200))
    whole = stamps(*ends)
    tables = []
    for cuts in ([], [60, 61, 170]):
        intervals = StreamIntervals(1, 0.01)
        for block in np.split(whole, cuts):
            intervals.add(block)
        intervals.close()
        tables.append(intervals.table)
    assert tables[0] == pytest.approx(tables[1])
    begins_s, repetitions, busy_s = tables[0].T
    assert repetitions.sum() == pytest.approx(200)
    assert busy_s.sum() == pytest.approx(ends[-1] * 1e-3, rel=1e-6)
    assert begins_s == pytest.approx(np.arange(len(begins_s)) * 0.01)


# ---------------------------------------------------------------- by their starts


def starts_of(elapsed_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(elapsed_ns) - elapsed_ns


def test_times_of_samples_of_several_operations_are_per_operation() -> None:
    elapsed = np.array([2, 4, 4, 4, 4]) * MS
    intervals = StartIntervals(rank=0, interval_s=0.01)
    seen = intervals.add(starts_of(elapsed), elapsed * 1e-9, operations=2) + intervals.close()
    assert [
        [counts.values[f"interval.{name}_s"] for name in ("min", "median", "max", "busy")]
        for counts in seen
    ] == [
        pytest.approx([1e-3, 2e-3, 2e-3, 10e-3]),
        pytest.approx([2e-3, 2e-3, 2e-3, 8e-3]),
    ]


def test_every_repetition_is_in_one_interval_across_blocks() -> None:
    elapsed = default_rng(0).integers(MS, 2 * MS, 400)
    starts = starts_of(elapsed)
    intervals = StartIntervals(rank=3, interval_s=0.01)
    seen: list[Counts] = []
    for begin in range(0, 400, 37):
        block = slice(begin, begin + 37)
        seen += intervals.add(starts[block], elapsed[block] * 1e-9, operations=1)
    seen += intervals.close()
    values = [counts.values for counts in seen]
    assert sum(each["interval.repetitions"] for each in values) == 400
    assert sum(each["interval.busy_s"] for each in values) == pytest.approx(elapsed.sum() * 1e-9)
    edges = [counts.t_ns for counts in seen]
    assert edges == sorted(set(edges)) and all(edge % (10 * MS) == 0 for edge in edges)
    inside = starts // (10 * MS) == 3
    third = next(counts.values for counts in seen if counts.t_ns == 30 * MS)
    assert third["interval.median_s"] == pytest.approx(np.median(elapsed[inside]) * 1e-9)
    assert {counts.rank for counts in seen} == {3}
