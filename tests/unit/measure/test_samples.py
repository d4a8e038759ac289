"""What a case yields: whose clock counts in each repetition, samples in bounded memory, and the
thread of a soak."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray

from commbench.measure import samples
from commbench.measure.samples import (
    LATE,
    MOST_WAITING,
    Counts,
    SoakTimeline,
    Timeline,
    Timer,
    counted_rows,
    deciding_rows,
    repetition_times,
)
from commbench.measure.statistics import summarise


def stamps_of(elapsed_ns: list[list[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    elapsed = np.array(elapsed_ns, dtype=np.int64)
    # as far from zero as a clock of a machine that is up for 30 years
    start = np.full_like(elapsed, 10**18)
    return np.stack([start, start + elapsed], axis=-1)


def job_of(
    headline: str, active: tuple[int, ...], senders: tuple[int, ...] = (0,), pairs: int = 0
) -> Any:
    case = SimpleNamespace(pairs=((0, 1),) * pairs)
    shape = SimpleNamespace(headline=headline)
    return SimpleNamespace(case=case, shape=shape, active=active, senders=senders)


@pytest.mark.parametrize(
    ("headline", "senders", "pairs", "expected_ns"),
    [
        ("initiator", (1, 0), 0, [20, 60]),
        ("initiator", (1, 2), 2, [30, 60]),  # several at once
        ("max_over_ranks", (0, 1, 2), 0, [30, 60]),
        ("max_over_senders", (0, 2), 2, [30, 50]),
    ],
)
def test_headline_says_whose_clock_counts(
    headline: str, senders: tuple[int, ...], pairs: int, expected_ns: list[int]
) -> None:
    stamps = stamps_of([[10, 50], [20, 60], [30, 40]])
    times = repetition_times(
        stamps, counted_rows(job_of(headline, (0, 1, 2), senders, pairs)), operations=4
    )
    assert times.tolist() == [ns / 4e9 for ns in expected_ns]


def test_an_unknown_headline_is_refused() -> None:
    with pytest.raises(ValueError, match="mean_over_ranks"):
        counted_rows(job_of("mean_over_ranks", (0,)))


def test_a_straggler_shows_in_the_tail_and_not_in_the_mean_of_ranks() -> None:
    elapsed = default_rng(1).integers(990_000, 1_010_000, size=(4, 901))
    # 10 of 901: exactly 1 % would lie one rank above the nearest-rank p99
    elapsed[2, ::100] += 5_000_000
    times = repetition_times(stamps_of(elapsed.tolist()), range(4), 1)
    p99_s = summarise(times)["p99_s"]
    assert p99_s is not None and p99_s > 5.9e-3
    assert float(np.median(times)) == pytest.approx(1e-3, rel=0.02)
    assert elapsed.mean() == pytest.approx(1e6, rel=0.02)


def test_of_several_initiators_the_slowest_decides() -> None:
    stamps = stamps_of([[10, 50], [99, 99], [30, 40]])
    assert deciding_rows(stamps, (0, 2)).tolist() == [2, 0]
    stamps[2] += 1_000  # a rank that ends last need not have taken longest
    assert deciding_rows(stamps, (0, 2)).tolist() == [2, 0]


def test_a_block_far_beyond_the_bound_is_thinned_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "KEPT_REPETITIONS", 10)
    line = Timeline(job_of("max_over_ranks", (0, 1)))
    elapsed = noise(2, 100)
    line.add("measure", stamps_at(elapsed[:, :85]))
    line.add("measure", stamps_at(elapsed[:, 85:], 10**9))
    assert line.times("measure") == pytest.approx(elapsed.max(axis=0)[::16] * 1e-9)
    assert line.repetitions("measure") == 100


def test_the_bound_of_what_is_kept_counts_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "RAW_STAMPS", 100)
    complete = []
    for repetitions in (33, 34):  # of three ranks
        line = Timeline(job_of("max_over_ranks", (0, 1, 2)))
        line.add("measure", stamps_at(noise(3, repetitions)))
        complete.append(line.complete)
    assert complete == [True, False]


MS = 10**6


def stamps_at(elapsed_ns: NDArray[np.int64], begin_ns: int = 0) -> NDArray[np.int64]:
    """[ranks, n, 2] back to back on rank 0's clock."""
    ends = begin_ns + np.cumsum(elapsed_ns[0])
    start = np.broadcast_to(ends - elapsed_ns[0], elapsed_ns.shape)
    return np.stack([start, start + elapsed_ns], axis=-1).astype(np.int64)


def noise(ranks: int, n: int, seed: int = 0) -> NDArray[np.int64]:
    return default_rng(seed).integers(MS, 2 * MS, size=(ranks, n))


def test_below_the_bound_everything_is_kept() -> None:
    line = Timeline(job_of("max_over_ranks", (0, 1, 2)))
    elapsed = noise(3, 50)
    line.add("warmup", stamps_at(elapsed[:, :10]))
    line.add("measure", stamps_at(elapsed[:, 10:30]))
    line.add("measure", stamps_at(elapsed[:, 30:]))
    assert line.complete and not line.counts
    assert [(block.phase, block.index, block.first) for block in line.blocks] == [
        ("warmup", 0, 0), ("measure", 1, 0), ("measure", 2, 20),
    ]  # fmt: skip
    assert line.times("measure") == pytest.approx(elapsed[:, 10:].max(axis=0) * 1e-9)
    assert line.repetitions("measure") == 40


def test_beyond_it_the_deciding_rank_and_quantiles_of_every_rank_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "RAW_STAMPS", 100)
    line = Timeline(job_of("max_over_ranks", (4, 5, 6)))
    elapsed = noise(3, 60)
    line.add("measure", stamps_at(elapsed[:, :30]))
    line.add("measure", stamps_at(elapsed[:, 30:]))
    raw, condensed = line.blocks
    assert raw.decided is None and raw.stamps.shape == (3, 30, 2)
    assert condensed.decided is not None and condensed.stamps.shape == (1, 30, 2)
    assert condensed.decided.tolist() == (elapsed[:, 30:].argmax(axis=0) + 4).tolist()
    assert line.times("measure") == pytest.approx(elapsed.max(axis=0) * 1e-9)
    assert not line.complete
    assert [counts.rank for counts in line.counts] == [4, 5, 6]
    shares = {"min": 0, "median": 50, "p90": 90, "p99": 99, "max": 100}
    for counts, of_rank in zip(line.counts, elapsed[:, 30:] * 1e-9, strict=True):
        quantiles = {
            f"rank.{name}_s": np.percentile(of_rank, share) for name, share in shares.items()
        }
        assert counts.values == pytest.approx(quantiles)


def test_what_is_kept_of_a_sample_of_several_operations_is_per_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "RAW_STAMPS", 0)
    line = Timeline(job_of("initiator", (0, 1)), interval_s=0.01)
    elapsed = np.full((2, 5), 4 * MS)
    elapsed[0, 0] = 2 * MS
    line.operations = 2
    line.add("measure", stamps_at(elapsed))
    line.close()
    values = {name: value for counts in line.counts for name, value in counts.values.items()}
    assert (values["rank.min_s"], values["rank.max_s"]) == (2e-3, 2e-3), "of the last rank"
    intervals = [counts.values for counts in line.counts if "interval.min_s" in counts.values]
    assert [
        [row[f"interval.{name}_s"] for name in ("min", "median", "max", "busy")]
        for row in intervals
    ] == [
        pytest.approx([1e-3, 2e-3, 2e-3, 10e-3]),
        pytest.approx([2e-3, 2e-3, 2e-3, 8e-3]),
    ]


def test_a_long_series_is_thinned_evenly_and_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "KEPT_REPETITIONS", 100)
    line = Timeline(job_of("initiator", (0, 1)))
    elapsed = noise(2, 1037)
    for begin in range(0, 1037, 61):
        line.add("measure", stamps_at(elapsed[:, begin : begin + 61]))
    seen = line.times("measure")
    assert line.repetitions("measure") == 1037
    assert seen == pytest.approx(elapsed[0, :: -(-1037 // len(seen))] * 1e-9)
    assert 50 < len(seen) <= 100


def test_intervals_hold_every_repetition_once_across_blocks_and_saves() -> None:
    line = Timeline(job_of("initiator", (3, 7)), interval_s=0.01)
    elapsed = noise(2, 400)
    whole = stamps_at(elapsed)
    seen = []
    for begin in range(0, 400, 37):
        line.add("measure", whole[:, begin : begin + 37])
        seen += line.counts
        line.forget()
    line.close()
    seen += line.counts
    intervals = [counts.values for counts in seen]
    assert sum(interval["interval.repetitions"] for interval in intervals) == 400
    assert sum(interval["interval.busy_s"] for interval in intervals) == pytest.approx(
        elapsed[0].sum() * 1e-9
    )
    edges = [counts.t_ns for counts in seen]
    assert edges == sorted(set(edges)) and all(edge % (10 * MS) == 0 for edge in edges)
    inside = whole[0, :, 0] // (10 * MS) == 3
    third = next(counts.values for counts in seen if counts.t_ns == 30 * MS)
    assert third["interval.median_s"] == pytest.approx(np.median(elapsed[0][inside]) * 1e-9)
    assert {counts.rank for counts in seen} == {3}
    assert not line.blocks and not line.complete, "what was saved is forgotten"
    assert len(line.times("measure")) == 400


def test_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "RAW_STAMPS", 1000)
    monkeypatch.setattr(samples, "KEPT_REPETITIONS", 500)
    line = Timeline(job_of("max_over_ranks", (0, 1)), interval_s=10.0)
    elapsed = noise(2, 100)
    for _ in range(200):
        line.add("measure", stamps_at(elapsed))
    kept = sum(block.stamps.size for block in line.blocks)
    assert kept <= 2 * (1000 + 500)
    assert len(line.times("measure")) <= 500
    assert line.repetitions("measure") == 20_000


def test_the_stamps_of_a_long_warm_up_are_those_of_its_beginning() -> None:
    line = Timeline(job_of("initiator", (0, 1)))
    for n in (1500, 1500, 1500):
        line.add("warmup", stamps_at(np.full((2, n), 1000)))
    line.add("measure", stamps_at(np.full((2, 10), 1000)))
    kept = [(block.phase, block.index, block.first, block.stamps.shape[1]) for block in line.blocks]
    assert kept == [("warmup", 0, 0, 1500), ("warmup", 1, 1500, 1500), ("measure", 2, 0, 10)]
    assert line.complete and line.repetitions("warmup") == len(line.times("warmup")) == 4500


# ---------------------------------------------------------------- a soak


OF_PAIR = (job_of("initiator", (3, 7)), 0.01)


def blocks(n: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """n blocks of 37 repetitions of two ranks, in ns."""
    edges = np.cumsum(default_rng(0).integers(1_000, 3_000_000, (2, 2 * 37 * n)), axis=1).reshape(
        2, -1, 2
    )
    return np.split(edges, n, axis=1)


def wait_for(event: threading.Event) -> None:
    event.wait(10)


def test_a_thread_keeps_what_a_timeline_keeps() -> None:
    plain = Timeline(*OF_PAIR)
    threaded = SoakTimeline(*OF_PAIR)
    for line in (plain, threaded):
        for index, stamps in enumerate(blocks(12)):
            line.add("warmup" if index < 2 else "measure", stamps)
            line.count(Counts(7, index, {"x": float(index)}))
            if index == 5:
                line.add(LATE, stamps)
        line.close()
    for phase in ("warmup", "measure", LATE):
        assert threaded.times(phase).tolist() == plain.times(phase).tolist()
    assert [(block.phase, block.index, block.first) for block in threaded.blocks] == [
        (block.phase, block.index, block.first) for block in plain.blocks
    ]
    assert threaded.counts == plain.counts


def test_the_times_of_a_warm_up_are_there_at_once() -> None:
    line = SoakTimeline(*OF_PAIR)
    go_on = threading.Event()
    line.later(partial(wait_for, go_on))
    line.add("warmup", blocks(1)[0])
    assert len(line.times("warmup")) == 37
    go_on.set()
    line.close()


def test_a_slow_disk_holds_the_loop_up_only_when_many_blocks_wait() -> None:
    line = SoakTimeline(*OF_PAIR)
    go_on = threading.Event()
    line.later(partial(wait_for, go_on))
    begin = time.monotonic()
    for stamps in blocks(MOST_WAITING):
        line.add("measure", stamps)
    assert time.monotonic() - begin < 5, "the first function still runs"
    late = threading.Timer(0.3, go_on.set)
    late.start()
    line.add("measure", blocks(1)[0])
    line.add("measure", blocks(1)[0])
    assert go_on.is_set(), "memory is bounded: the loop waited"
    line.close()
    assert len(line.times("measure")) == 37 * (MOST_WAITING + 2)


def test_an_error_of_the_thread_is_raised_by_the_loop() -> None:
    line = SoakTimeline(*OF_PAIR)

    def fail() -> None:
        raise OSError("no space left")

    line.later(fail)
    with pytest.raises(OSError, match="no space left"):
        line.close()
    with pytest.raises(OSError, match="no space left"):
        line.add("measure", blocks(1)[0])


def test_a_timer_is_due_again_after_the_given_time() -> None:
    timer = Timer(1e6)
    assert [timer.due(1e6 + now_s, 5.0) for now_s in (4, 6, 7, 10.9, 11)] == [
        False,
        True,
        False,
        False,
        True,
    ]
