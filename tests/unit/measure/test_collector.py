"""What rank 0 collects of a visit, in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray
from planned_cases import planned_of

from commbench.measure import collector as collecting
from commbench.measure.collector import SampleCollector

MS = 10**6


def stamps_at(elapsed_ns: NDArray[np.int64], begin_ns: int = 0) -> NDArray[np.int64]:
    """[ranks, n, 2] back to back on rank 0's clock."""
    ends = begin_ns + np.cumsum(elapsed_ns[0])
    start = np.broadcast_to(ends - elapsed_ns[0], elapsed_ns.shape)
    return np.stack([start, start + elapsed_ns], axis=-1).astype(np.int64)


def noise(ranks: int, n: int, seed: int = 0) -> NDArray[np.int64]:
    return default_rng(seed).integers(MS, 2 * MS, size=(ranks, n))


def test_a_block_far_beyond_the_bound_is_thinned_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "KEPT_REPETITIONS", 10)
    collector = SampleCollector(planned_of("max_over_ranks", (0, 1)))
    elapsed = noise(2, 100)
    collector.add("measure", stamps_at(elapsed[:, :85]))
    collector.add("measure", stamps_at(elapsed[:, 85:], 10**9))
    assert collector.times("measure") == pytest.approx(elapsed.max(axis=0)[::16] * 1e-9)
    assert collector.repetitions("measure") == 100


def test_the_bound_of_what_is_kept_counts_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "RAW_STAMPS", 100)
    complete = []
    for repetitions in (33, 34):  # of three ranks
        collector = SampleCollector(planned_of("max_over_ranks", (0, 1, 2)))
        collector.add("measure", stamps_at(noise(3, repetitions)))
        complete.append(collector.complete)
    assert complete == [True, False]


def test_below_the_bound_everything_is_kept() -> None:
    collector = SampleCollector(planned_of("max_over_ranks", (0, 1, 2)))
    elapsed = noise(3, 50)
    collector.add("warmup", stamps_at(elapsed[:, :10]))
    collector.add("measure", stamps_at(elapsed[:, 10:30]))
    collector.add("measure", stamps_at(elapsed[:, 30:]))
    assert collector.complete and not collector.counts
    assert [(block.phase, block.index, block.first) for block in collector.blocks] == [
        ("warmup", 0, 0), ("measure", 1, 0), ("measure", 2, 20),
    ]  # fmt: skip
    assert collector.times("measure") == pytest.approx(elapsed[:, 10:].max(axis=0) * 1e-9)
    assert collector.repetitions("measure") == 40


def test_beyond_it_the_stamps_of_the_deciding_rank_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "RAW_STAMPS", 100)
    collector = SampleCollector(planned_of("max_over_ranks", (4, 5, 6)))
    elapsed = noise(3, 60)
    collector.add("measure", stamps_at(elapsed[:, :30]))
    collector.add("measure", stamps_at(elapsed[:, 30:]))
    raw, condensed = collector.blocks
    assert raw.decided is None and raw.stamps.shape == (3, 30, 2)
    assert condensed.decided is not None and condensed.stamps.shape == (1, 30, 2)
    assert condensed.decided.tolist() == (elapsed[:, 30:].argmax(axis=0) + 4).tolist()
    assert collector.times("measure") == pytest.approx(elapsed.max(axis=0) * 1e-9)
    assert not collector.complete


def test_a_long_series_is_thinned_evenly_and_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "KEPT_REPETITIONS", 100)
    collector = SampleCollector(planned_of("initiator", (0, 1), (0, 1)))
    elapsed = noise(2, 1037)
    for begin in range(0, 1037, 61):
        collector.add("measure", stamps_at(elapsed[:, begin : begin + 61]))
    seen = collector.times("measure")
    assert collector.repetitions("measure") == 1037
    assert seen == pytest.approx(elapsed[0, :: -(-1037 // len(seen))] * 1e-9)
    assert 50 < len(seen) <= 100


def test_what_is_saved_is_forgotten_but_for_the_times() -> None:
    collector = SampleCollector(planned_of("initiator", (3, 7), (3, 7)))
    collector.add("measure", stamps_at(noise(2, 400)))
    collector.forget()
    assert not collector.blocks and not collector.complete
    assert len(collector.times("measure")) == 400


def test_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "RAW_STAMPS", 1000)
    monkeypatch.setattr(collecting, "KEPT_REPETITIONS", 500)
    collector = SampleCollector(planned_of("max_over_ranks", (0, 1)))
    elapsed = noise(2, 100)
    for _ in range(200):
        collector.add("measure", stamps_at(elapsed))
    kept = sum(block.stamps.size for block in collector.blocks)
    assert kept <= 2 * (1000 + 500)
    assert len(collector.times("measure")) <= 500
    assert collector.repetitions("measure") == 20_000


def test_the_stamps_of_a_long_warm_up_are_those_of_its_beginning() -> None:
    collector = SampleCollector(planned_of("initiator", (0, 1), (0, 1)))
    for n in (1500, 1500, 1500):
        collector.add("warmup", stamps_at(np.full((2, n), 1000)))
    collector.add("measure", stamps_at(np.full((2, 10), 1000)))
    kept = [
        (block.phase, block.index, block.first, block.stamps.shape[1]) for block in collector.blocks
    ]
    assert kept == [("warmup", 0, 0, 1500), ("warmup", 1, 1500, 1500), ("measure", 2, 0, 10)]
    assert (
        collector.complete
        and collector.repetitions("warmup") == len(collector.times("warmup")) == 4500
    )
