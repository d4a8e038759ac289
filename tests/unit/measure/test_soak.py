"""A soak's timeline, which a thread fills and saves, and when it is saved and checked."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np
import pytest
from numpy.random import default_rng

from commbench.measure.samples import LATE, Counts, Timeline
from commbench.measure.soak import CHECK_SHARE, FLUSH_S, MOST_WAITING, Pace, SoakTimeline

OF_PAIR = ("initiator", (3, 7), (0,), 0.01)


def blocks(n: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """n blocks of 37 repetitions of two ranks, in ns."""
    edges = np.cumsum(default_rng(0).integers(1_000, 3_000_000, (2, 2 * 37 * n)), axis=1).reshape(2, -1, 2)
    return np.split(edges, n, axis=1)


def wait_for(event: threading.Event) -> None:
    event.wait(10)


def test_a_thread_keeps_what_a_timeline_keeps() -> None:
    plain, threaded = Timeline(*OF_PAIR), SoakTimeline(*OF_PAIR)
    for line in (plain, threaded):
        for index, stamps in enumerate(blocks(12)):
            line.add("warmup" if index < 2 else "measure", stamps)
            line.count(Counts.of(7, index, {"x": float(index)}))
            if index == 5:
                line.add(LATE, stamps)
        line.close()
    for phase in ("warmup", "measure", LATE):
        assert threaded.times(phase).tolist() == plain.times(phase).tolist()
    assert [(block.phase, block.index, block.first) for block in threaded.blocks()] == [
        (block.phase, block.index, block.first) for block in plain.blocks()
    ]
    for mine, its in zip(threaded.counts(), plain.counts(), strict=True):
        assert (mine.t_ns.tolist(), mine.name.tolist(), mine.value.tolist()) == (
            its.t_ns.tolist(), its.name.tolist(), its.value.tolist(),
        )  # fmt: skip


def test_the_times_of_a_warm_up_are_there_at_once() -> None:
    line, go_on = SoakTimeline(*OF_PAIR), threading.Event()
    line.later(partial(wait_for, go_on))
    line.add("warmup", blocks(1)[0])
    assert len(line.times("warmup")) == 37
    go_on.set()
    line.close()


def test_a_slow_disk_holds_the_loop_up_only_when_many_blocks_wait() -> None:
    line, go_on = SoakTimeline(*OF_PAIR), threading.Event()
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


def test_long_checks_are_rare() -> None:
    pace = Pace()
    assert pace.begin() == 0
    begin = pace.begun_s
    assert not pace.save_due(begin + FLUSH_S - 1) and not pace.check_due(begin + FLUSH_S - 1)
    assert pace.save_due(begin + FLUSH_S + 1) and pace.check_due(begin + FLUSH_S + 1)
    assert not pace.save_due(begin + FLUSH_S + 2)
    pace.check_s = 1.0
    assert not pace.check_due(begin + 100)
    assert pace.check_due(begin + FLUSH_S + 2 + 2 / CHECK_SHARE)
