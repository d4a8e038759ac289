"""When the repetitions of a window begin, and which of them count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.core.case import World
from commbench.engines.lowered import Call, Lowered, PythonRunner, now_ns
from commbench.engines.native import NativeRunner
from commbench.measure.agreed_starts import (
    HOPELESS_BLOCKS,
    LATE_NS,
    LEAD_NS,
    LENGTH_FACTOR,
    MARGIN_NS,
    MAX_LEAD_NS,
    MAX_LENGTH_NS,
    AgreedStarts,
)
from commbench.measure.collector import SampleCollector
from commbench.measure.global_clock import (
    GlobalClocks,
)
from commbench.runtime.control import StoreControl

TOOK_NS = 100_000


def window() -> tuple[AgreedStarts, SampleCollector]:
    """Of two ranks on one node: both stamps are of the same clock."""
    planned: Any = SimpleNamespace(
        active=(0, 1), shape=SimpleNamespace(headline="max_over_ranks", ranks=None)
    )
    collector = SampleCollector(planned)
    clock = GlobalClocks(World(0, 1, ((0,),), (0,)), None).of((0,), StoreControl(None, 0, 1), 1.0)
    clock.lines = clock.lines * 2
    return AgreedStarts(clock, StoreControl(None, 0, 1), (0, 1), collector), collector


def stamps(starts: Any, delays: Any = 0, took: Any = TOOK_NS) -> Any:
    """[2, n, 2]: rank 0 begins in time, rank 1 by `delays` later."""
    begin = np.stack([starts, starts + np.zeros(len(starts), dtype=np.int64) + delays])
    return np.stack([begin, begin + took], axis=2).astype(np.int64)


def warmed() -> tuple[AgreedStarts, SampleCollector]:
    case_window, collector = window()
    starts = case_window.starts(10, False, 1.0)
    assert len(set(starts.tolist())) == 1, (
        "before it is measured, repetitions follow one another at once"
    )
    case_window.add("warmup", stamps(starts + TOOK_NS * np.arange(10)))
    return case_window, collector


def test_the_length_follows_from_the_warm_up() -> None:
    case_window, _ = warmed()
    between = np.diff(case_window.starts(5, True, 1.0))
    assert between.tolist() == [LENGTH_FACTOR * TOOK_NS + MARGIN_NS] * 4


@given(st.lists(st.integers(0, 3 * LATE_NS), min_size=1, max_size=30))
def test_a_repetition_that_a_rank_began_late_is_apart_and_the_time_is_that_from_the_common_start(
    delays: list[int],
) -> None:
    case_window, collector = warmed()
    starts = case_window.starts(len(delays), True, 1.0)
    case_window.add("measure", stamps(starts, np.array(delays)))
    in_time = [delay for delay in delays if delay <= LATE_NS]
    assert collector.times("measure").tolist() == [(TOOK_NS + delay) / 1e9 for delay in in_time]
    assert case_window.late == collector.repetitions("late") == len(delays) - len(in_time)
    kept = [block for block in collector.blocks if block.phase in ("measure", "late")]
    assert sum(block.stamps.shape[1] for block in kept) == len(delays), (
        "raw stamps of late ones are kept"
    )


def test_a_microsecond_is_the_limit() -> None:
    case_window, _ = warmed()
    case_window.add("measure", stamps(case_window.starts(3, True, 1.0), np.array([0, 900, 1_100])))
    assert case_window.late == 1


def test_the_window_grows_where_many_are_late_and_only_there() -> None:
    case_window, _ = warmed()
    length = np.diff(case_window.starts(8, True, 1.0))[0]
    case_window.add(
        "measure", stamps(case_window.starts(8, True, 1.0), np.array([0] * 6 + [2 * LATE_NS] * 2))
    )
    assert np.diff(case_window.starts(8, True, 1.0))[0] == length
    case_window.add(
        "measure", stamps(case_window.starts(8, True, 1.0), np.array([0] * 5 + [2 * LATE_NS] * 3))
    )
    assert np.diff(case_window.starts(8, True, 1.0))[0] == 2 * length


def test_a_block_that_begins_late_is_given_more_time_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case_window, collector = warmed()
    decided_ns = 10**12
    monkeypatch.setattr(case_window._clock, "now", lambda: decided_ns)
    leads = []
    for _ in range(8):
        starts = case_window.starts(1, True, 1.0)
        leads.append(int(starts[0]) - decided_ns)
        case_window.add("measure", stamps(starts, 2 * LATE_NS))
    assert leads[0] == LEAD_NS and leads[-1] >= MAX_LEAD_NS
    assert len(collector.times("measure")) == 0


def test_it_gives_up_when_nothing_ever_begins_in_time() -> None:
    case_window, _ = warmed()
    for _ in range(HOPELESS_BLOCKS):
        assert case_window.problem is None
        case_window.add("measure", stamps(case_window.starts(2, True, 1.0), 2 * LATE_NS))
    assert np.diff(case_window.starts(2, True, 1.0))[0] <= MAX_LENGTH_NS
    assert (
        case_window.problem is not None
        and "sync=barrier" in case_window.problem
        and "\n" not in case_window.problem
    )


def test_a_block_is_no_longer_than_half_a_second() -> None:
    case_window, _ = warmed()
    assert case_window.most(10**6) == round(0.5e9) // round(LENGTH_FACTOR * TOOK_NS + MARGIN_NS)
    assert case_window.most(3) == 3


# ---------------------------------------------------------------- engines


def python(clocked: bool) -> PythonRunner:
    return PythonRunner(Lowered((Call(lambda: None),), clocked=clocked), 1)


def native(clocked: bool) -> NativeRunner:
    return NativeRunner(Lowered(clocked=clocked), 1, None)


@pytest.mark.parametrize("engine", [python, native])
def test_no_repetition_begins_before_its_instant_and_some_begin_at_it(engine: Any) -> None:
    runner = engine(True)
    for _ in range(40):  # the machine may be busy
        starts = now_ns() + 8_000_000 + 200_000 * np.arange(50, dtype=np.int64)
        begin = runner(50, starts)[0, :, 0]
        assert (begin >= starts).all()
        if (begin - starts <= LATE_NS).any():
            return
    pytest.fail("all repetitions began late, each time")


@pytest.mark.parametrize("engine", [python, native])
def test_a_program_with_a_barrier_waits_for_no_instant(engine: Any) -> None:
    begin = now_ns()
    stamps = engine(False)(20)[0]
    assert begin <= stamps[0, 0] and stamps[-1, 1] - begin < 10**9
    assert "starts" not in python(False)._loop.__code__.co_varnames


def test_an_instant_for_a_program_that_was_not_prepared_for_it_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="sync=clock"):
        native(False)(1, np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match="sync=clock"):
        native(True)(1)
