"""A soak: the thread that collects and saves while the next block runs, and its timing strategy."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np
import pytest
from composed import FACTS, settings_of
from numpy.random import default_rng
from numpy.typing import NDArray
from planned_cases import planned_of

from commbench.core.variables import Variables
from commbench.features.streams.soak import MOST_WAITING, Soak, SoakCollector, Timer
from commbench.measure.blocks import BlockResult, Blocks
from commbench.measure.collector import SampleCollector
from commbench.measure.counters import CounterReader
from commbench.measure.plan import plan
from commbench.measure.samples import Counts
from commbench.measure.visit_setup import VisitSetup
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress

OF_PAIR = (planned_of("initiator", (3, 7), (3, 7)), 0.01)


def blocks(n: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """n blocks of 37 repetitions of two ranks, in ns."""
    edges = np.cumsum(default_rng(0).integers(1_000, 3_000_000, (2, 2 * 37 * n)), axis=1).reshape(
        2, -1, 2
    )
    return np.split(edges, n, axis=1)


def wait_for(event: threading.Event) -> None:
    event.wait(10)


def test_a_thread_collects_the_same() -> None:
    plain = SampleCollector(OF_PAIR[0])
    threaded = SoakCollector(*OF_PAIR)
    for collector in (plain, threaded):
        for index, stamps in enumerate(blocks(12)):
            collector.add("warmup" if index < 2 else "measure", stamps)
            collector.count(Counts(7, index, {"x": float(index)}))
        collector.close()
    for phase in ("warmup", "measure"):
        assert threaded.times(phase).tolist() == plain.times(phase).tolist()
    assert [(block.phase, block.index, block.first) for block in threaded.blocks] == [
        (block.phase, block.index, block.first) for block in plain.blocks
    ]
    assert [counts for counts in threaded.counts if counts.rank == 7] == plain.counts
    intervals = [counts for counts in threaded.counts if counts.rank == 3]
    assert sum(counts.values["interval.repetitions"] for counts in intervals) == 10 * 37


def test_the_times_of_a_warm_up_are_there_at_once() -> None:
    collector = SoakCollector(*OF_PAIR)
    go_on = threading.Event()
    collector.later(partial(wait_for, go_on))
    collector.add("warmup", blocks(1)[0])
    assert len(collector.times("warmup")) == 37
    go_on.set()
    collector.close()


def test_a_slow_disk_holds_the_loop_up_only_when_many_blocks_wait() -> None:
    collector = SoakCollector(*OF_PAIR)
    go_on = threading.Event()
    collector.later(partial(wait_for, go_on))
    begin = time.monotonic()
    for stamps in blocks(MOST_WAITING):
        collector.add("measure", stamps)
    assert time.monotonic() - begin < 5, "the first function still runs"
    late = threading.Timer(0.3, go_on.set)
    late.start()
    collector.add("measure", blocks(1)[0])
    collector.add("measure", blocks(1)[0])
    assert go_on.is_set(), "memory is bounded: the loop waited"
    collector.close()
    assert len(collector.times("measure")) == 37 * (MOST_WAITING + 2)


def test_an_error_of_the_thread_is_raised_by_the_loop() -> None:
    collector = SoakCollector(*OF_PAIR)

    def fail() -> None:
        raise OSError("no space left")

    collector.later(fail)
    with pytest.raises(OSError, match="no space left"):
        collector.close()
    with pytest.raises(OSError, match="no space left"):
        collector.add("measure", blocks(1)[0])


def test_a_signal_while_the_thread_starts_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process would wait for it at its exit."""
    real = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        real(thread)
        raise KeyboardInterrupt

    collector = SoakCollector(*OF_PAIR)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collector.add("measure", blocks(1)[0])
    collector.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("commbench-soak")]


def stamps_of(steps_s: list[float]) -> NDArray[np.int64]:
    """A block of two ranks whose repetitions take so many seconds, one right after another."""
    ends_s = np.cumsum(steps_s)
    of_rank = np.stack([ends_s - steps_s, ends_s], axis=1)
    return np.round(1e9 * np.array([of_rank, of_rank])).astype(np.int64)


@pytest.mark.parametrize("step", [0, 4])
def test_a_stop_within_repetitions_is_time_that_was_not_measured(step: int) -> None:
    """A process that was stopped (SIGSTOP) for as long as the soak lasted left no trace but its
    longest time, and none at all where it waited at a barrier."""
    steps_s = [1e-3] * 10
    stopped_s = [8.001 if index == step else each for index, each in enumerate(steps_s)]
    at_barrier = stamps_of(steps_s)
    at_barrier[:, 5:] += 8_000_000_000
    for block, expected_s in [
        (stamps_of(steps_s), 0.0),
        (stamps_of(stopped_s), 8.0),
        (at_barrier, 8.0),
        (stamps_of([1e-3] * 9 + [0.9]), 0.0),  # such as a TCP segment that was lost
    ]:
        collector = SoakCollector(*OF_PAIR)
        collector.add("measure", block)
        collector.close()
        assert collector.stalled_s == pytest.approx(expected_s, abs=1e-6)


def test_messages_that_take_seconds_are_no_stall() -> None:
    collector = SoakCollector(*OF_PAIR)
    for step_s in (2.0, 3.5, 2.1, 19.0, 40.0):  # each a block of its own
        collector.add("measure", stamps_of([step_s]))
    collector.close()
    assert collector.stalled_s == pytest.approx(38.0)


def test_a_timer_is_due_again_after_the_given_time() -> None:
    timer = Timer(1e6)
    assert [timer.due(1e6 + now_s, 5.0) for now_s in (4, 6, 7, 10.9, 11)] == [
        False,
        True,
        False,
        False,
        True,
    ]


# ---------------------------------------------------------------- the strategy


def soak_of(*words: str) -> Soak:
    settings = settings_of(
        "backend=simulated",
        "benchmark=p2p_latency",
        "sizes=[8]",
        "layout=1x2",
        "timing=soak",
        *words,
    )
    world, control = hosted_world(1, 2)
    (planned,) = plan(settings, world, FACTS)
    communicator = settings.backend.open(world, control)
    progress = Progress()
    return Soak(VisitSetup(planned, communicator, control, settings, {}, lambda _: None, progress))


def test_stamps_of_a_soak_are_50_us_apart() -> None:
    soak = soak_of()
    assert [soak.samples_per_stamp(sample_s) for sample_s in (1e-9, 0.625e-6, 1e-3)] == [256, 80, 1]
    behind = soak_of("sync=barrier", "benchmark=all_reduce")
    assert behind.samples_per_stamp(1e-9) == 1, "each begins at a meeting of its own"


def test_a_soak_without_a_warm_up_tries_how_long_a_call_takes() -> None:
    without = soak_of("timing.warmup_s=0", "timing.warmup_repetitions=0").warm_up_rule
    assert without.trial and without.first_block(1e-3, 1e-3) == 20
    assert not soak_of("timing.warmup_s=0", "timing.warmup_repetitions=1").warm_up_rule.trial
    on_a_virtual_clock = soak_of("timing.warmup_s=0.1", "timing.warmup_repetitions=0")
    assert on_a_virtual_clock.warm_up_rule.trial, "its seconds take no time"


def test_rank_0_does_not_say_what_the_loops_of_others_left_out() -> None:
    assert soak_of().unmeasured_s == 0.0
    of_others = soak_of("pairs=[[1,1]]", "timing.duration_s=9").findings
    assert of_others == {"duration_s": 9, "unmeasured_s": None}


def test_time_in_which_the_machine_slept_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the soak, CLOCK_MONOTONIC, stands still meanwhile."""
    now_s = {time.CLOCK_BOOTTIME: 100.0}
    monkeypatch.setattr(time, "clock_gettime", now_s.__getitem__)
    soak = soak_of()
    monkeypatch.setattr(Variables, "has_model_clock", False)
    counters = CounterReader(soak.setup)
    blocks = Blocks(soak.setup, soak.collector, counters)
    blocks.last = BlockResult(n=10, total_s=0.1)
    soak.begin(lambda reason: pytest.fail("nothing is saved yet"), counters)
    soak.next_block(blocks, check_s=0.0)
    assert soak.unmeasured_s == 0.0
    now_s[time.CLOCK_BOOTTIME] += 30.0
    soak.next_block(blocks, check_s=0.0)
    assert soak.unmeasured_s == 30.0
    soak.collector.close()


def test_a_simulated_soak_lasts_and_is_checked_on_the_clock_of_its_world() -> None:
    soak = soak_of("timing.duration_s=100")
    counters = CounterReader(soak.setup)
    blocks = Blocks(soak.setup, soak.collector, counters)
    soak.begin(lambda reason: pytest.fail("nothing is saved yet"), counters)
    blocks.last = BlockResult(n=2)
    begins_ns = np.array([[0, 25], [0, 25]]) * 10**9
    soak.collector.add_parts("measure", [np.stack([begins_ns, begins_ns + 20 * 10**9], axis=2)])
    assert soak.next_block(blocks, check_s=0.0) == (1, True, None), "45 s for two"
    assert not soak.next_block(blocks, check_s=0.0)[1], "no time has passed since the check"
    begins_ns += 55 * 10**9
    soak.collector.add_parts("measure", [np.stack([begins_ns, begins_ns + 20 * 10**9], axis=2)])
    assert soak.next_block(blocks, check_s=0.15) == (1, False, None), "90 s, a check each 100 s"
    soak.collector.add_parts("measure", [np.stack([begins_ns, begins_ns + 20 * 10**9], axis=2)])
    assert soak.next_block(blocks, check_s=0.0)[2] == "duration", "135 s"
    assert soak.unmeasured_s == 0.0
    soak.collector.close()
