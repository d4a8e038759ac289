"""Where a stream is possible, what a sample of it is, and how many threads it keeps busy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from composed import FACTS, settings_of

from commbench.core.case import Planned, World
from commbench.measure.plan import plan
from commbench.measure.samples import counted_rows
from commbench.measure.time_limits import samples_per_stamp, typical_s

STREAM = ("benchmark=stream", "layout=1x2", "sizes=[16KiB]")


def planned_of(*words: str) -> Planned:
    world = World(0, 2, ((0, 1),), (0,))
    (planned,) = plan(settings_of("backend=tcp", *STREAM, *words), world, FACTS)
    return planned


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["backend=gloo"], "backend=tcp"),
        (["backend=simulated"], "backend=tcp"),
        (["backend=tcp", "schedule=rounds"], "schedule=serial"),
        (["backend=tcp", "cache=rotate"], "cache=warm"),
    ],
)
def test_where_it_is_not_possible_a_case_is_skipped_with_the_reason(
    words: list[str], reason: str
) -> None:
    world = World(0, 2, ((0, 1),), (0,))
    (planned,) = plan(settings_of(*STREAM, *words), world, FACTS)
    assert planned.skip is not None and reason in planned.skip


def test_a_sample_is_a_write_of_each_connection() -> None:
    planned = planned_of("streams=4")
    assert planned.skip is None
    assert planned.shape.operations == 4
    assert planned.shape.moved_bytes == 4 * 16384
    assert planned.case.message_bytes == 16384, "of each write"


@pytest.mark.parametrize(("pair", "row"), [("[0,1]", 1), ("[1,0]", 0), ("[1,1]", 0)])
def test_the_receivers_clock_counts(pair: str, row: int) -> None:
    assert counted_rows(planned_of(f"pairs=[{pair}]")) == (row,)


def test_writes_between_two_stamps_take_10_ms_by_their_mean() -> None:
    """A receiver gets several at once: the median of their times is that of a copy in memory."""
    planned = planned_of()
    times = np.array([1e-6, 1e-6, 1e-6, 397e-6])
    assert typical_s(planned, times) == pytest.approx(100e-6)
    assert samples_per_stamp(planned, 100e-6, least_s=0.0) == 100
    assert samples_per_stamp(planned, 20e-3, least_s=0.0) == 1
    assert samples_per_stamp(planned, 100e-6, least_s=50e-6, most=256) == 100, "as a soak asks"
    assert samples_per_stamp(planned, 10e-6, least_s=50e-6, most=256) == 1000


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        (["benchmark=stream", "streams=[1,36]", "stream_threads=one"], 1),
        (["benchmark=stream", "streams=[1,36]", "stream_threads=each"], 36),
        (["benchmark=stream", "streams=36", "stream_threads=[one,each]"], 36),
        (["benchmark=[stream,p2p_bandwidth]", "streams=36", "stream_threads=one"], 36),
        (["benchmark=stream"], 1),
    ],
)
def test_binding_counts_the_threads_of_the_connections(words: list[str], threads: int) -> None:
    assert settings_of("backend=tcp", "layout=1x2", *words).threads_per_rank == threads


def test_threads_are_counted_in_a_case() -> None:
    driven: dict[Any, int] = {
        threads: planned_of("streams=8", f"stream_threads={threads}").case.threads_of_streams
        for threads in ("one", "each")
    }
    assert driven == {"one": 1, "each": 8}
