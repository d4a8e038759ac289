"""The lines between clocks are where the truth is, by as much as they say; when the repetitions of
a window begin."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from rank_threads import no_error, together
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from commbench.core.case import World
from commbench.engines.lowered import Call, Lowered, PythonRunner, now_ns
from commbench.engines.native import NativeRunner
from commbench.measure.collector import SampleCollector
from commbench.measure.global_clock import (
    CLOCK_READING,
    HOPELESS_BLOCKS,
    LATE_NS,
    LEAD_NS,
    LENGTH_FACTOR,
    MARGIN_NS,
    MAX_LEAD_NS,
    MAX_LENGTH_NS,
    PING,
    STAR_NODES,
    UNKNOWN_DRIFT,
    AgreedStarts,
    GlobalClock,
    GlobalClocks,
    Line,
    Reading,
    answer,
    ask,
    children_of,
    fit,
    parent_of,
)
from commbench.runtime.control import SingleProcessControl, StoreControl
from commbench.runtime.peer_listener import PeerListener

BOOT_NS = 2**52  # a clock of a machine that is up for 52 days
OFFSETS = st.integers(-(2**55), 2**55)
SLOPES = st.floats(-5e-4, 5e-4)
LINES = st.builds(
    Line, st.integers(0, BOOT_NS), OFFSETS, SLOPES, st.floats(0, 1e6), st.floats(0, 1e-3)
)


@st.composite
def compared(draw: st.DrawFn) -> tuple[list[Reading], int, float]:
    """Readings of two straight clocks over 0.1 to 30 s, and their offset and slope from the first
    one on."""
    rng = default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(2, 12))
    offset = draw(OFFSETS)
    slope = draw(SLOPES)
    seconds = np.cumsum(rng.uniform(0.1, 3.0, count))
    readings = []
    for since_ns in (seconds * 1e9).astype(int).tolist():
        truth = offset + round(slope * since_ns)
        before, after = (int(delay) for delay in rng.exponential(20_000, 2))
        readings.append(Reading(BOOT_NS + since_ns, truth - after - 2, truth + before + 2))
    return readings, offset, slope


@given(compared())
def test_between_its_readings_a_line_is_as_close_to_the_truth_as_it_says(
    case: tuple[list[Reading], int, float],
) -> None:
    readings, offset, slope = case
    line = fit(readings)
    tight = sorted(readings, key=lambda reading: reading.width_ns)[:2]
    for own in (reading.own_ns for reading in tight):
        truth = own + offset + slope * (own - BOOT_NS)
        assert abs(int(line.reference(np.array([own]))[0]) - truth) <= line.error_at(own) + 2


@given(compared())
def test_the_error_is_never_below_half_of_the_tightest_round_trip_and_grows_afterwards(
    case: tuple[list[Reading], int, float],
) -> None:
    line = fit(case[0])
    assert line.error_ns >= min(reading.width_ns for reading in case[0]) / 2
    assert line.error_at(line.until_ns) == line.error_ns < line.error_at(line.until_ns + 10**9)


@given(compared(), st.integers(10**6, 10**9))
def test_a_disturbed_reading_changes_nothing(
    case: tuple[list[Reading], int, float], width_ns: int
) -> None:
    readings = case[0]
    width_ns = width_ns + 10 * max(reading.width_ns for reading in case[0])
    late = readings[-1]
    disturbed = Reading(late.own_ns + 10**8, late.low_ns - width_ns, late.high_ns)
    assert fit([*readings, disturbed]) == fit(readings)


def test_two_quiet_readings_give_the_slope() -> None:
    line = fit([Reading(BOOT_NS, 990, 1010), Reading(BOOT_NS + 10**9, 50_990, 51_010)])
    assert line.slope == pytest.approx(50e-6)
    assert int(line.reference(np.array([BOOT_NS + 2 * 10**9]))[0]) == BOOT_NS + 2 * 10**9 + 101_000
    assert line.error_ns == pytest.approx(11)


def test_one_reading_says_nothing_of_the_slope() -> None:
    line = fit([Reading(BOOT_NS, 0, 2_000)])
    assert (line.offset_ns, line.slope, line.drift) == (1_000, 0.0, UNKNOWN_DRIFT)
    assert line.error_at(BOOT_NS + 10**9) == pytest.approx(1_001 + 500_000)


@given(LINES, st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=5))
def test_there_and_back_is_where_it_was(line: Line, since: list[int]) -> None:
    reference = np.array(since) + line.at_ns + line.offset_ns
    assert np.abs(line.reference(line.own(reference)) - reference).max() <= 2


@given(LINES, LINES, st.integers(-(2**40), 2**40))
def test_two_lines_make_one_and_their_errors_add(child: Line, parent: Line, since: int) -> None:
    parent = Line(
        child.at_ns + child.offset_ns,
        *[getattr(parent, name) for name in ("offset_ns", "slope", "error_ns")],
    )
    own = np.array([child.at_ns + since])
    both = child.onward(parent)
    assert np.abs(both.reference(own) - parent.reference(child.reference(own))).max() <= 4
    assert both.error_ns == child.error_ns + parent.error_ns


def test_below_the_reference_itself_a_line_stays_what_it_is() -> None:
    line = fit(
        [Reading(BOOT_NS, 10**14, 10**14 + 20), Reading(BOOT_NS + 10**9, 10**14, 10**14 + 20)]
    )
    assert line.onward(Line()) == line
    assert line.onward(Line()).error_at(BOOT_NS + 2 * 10**9) < 2_000


@given(st.integers(1, 5000))
def test_every_node_has_one_parent_that_came_before_it_and_the_tree_is_flat(count: int) -> None:
    depth = [0] * count
    for index in range(1, count):
        assert parent_of(index, count) < index
        depth[index] = depth[parent_of(index, count)] + 1
    assert max(depth) <= (1 if count <= STAR_NODES else (count - 1).bit_length())


@settings(max_examples=20)
@given(st.integers(1, 200))
def test_children_are_those_who_have_this_parent(count: int) -> None:
    pairs = {(index, child) for index in range(count) for child in children_of(index, count)}
    assert pairs == {(parent_of(child, count), child) for child in range(1, count)}


def shifted(offset_ns: int, slope: float) -> Callable[[], int]:
    began = now_ns()

    def clock() -> int:
        now = now_ns()
        return now + offset_ns + round(slope * (now - began))

    return clock


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname()[:2])
        far = server.accept()[0]
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.settimeout(10)
    return near, far


@pytest.mark.parametrize("offset_ns", [0, 10**15, -(10**15)])
def test_a_burst_over_a_socket_encloses_the_true_offset(offset_ns: int) -> None:
    near, far = pair()
    with closing(near), closing(far):
        own = now_ns
        other = shifted(offset_ns, 0.0)
        work: dict[str, Callable[[], Any]] = {
            "ask": lambda: ask(near, own),
            "answer": lambda: answer(far, other),
        }
        reading = no_error(together(lambda side: work[side](), ["ask", "answer"]))[0]
    assert reading.low_ns <= offset_ns <= reading.high_ns
    assert 0 < reading.width_ns < 10**9


class Answering:
    """The other side, whose clock is 1000 ns ahead: it answers each ping after as long as the
    script says."""

    def __init__(self, widths_ns: list[int]) -> None:
        self._widths_ns = widths_ns
        self._now_ns = 0

    def clock(self) -> int:
        return self._now_ns

    def sendall(self, data: bytes) -> None:
        assert data == PING

    def recv(self, size: int) -> bytes:
        if size == len(PING):
            return PING
        self._now_ns += self._widths_ns.pop(0)
        return CLOCK_READING.pack(self._now_ns + 1000)


def test_the_tightest_of_the_pings_counts() -> None:
    peer: Any = Answering([700, 30, 400])
    assert ask(peer, peer.clock, pings=3) == Reading(700 + 30 // 2, 1000, 1000 + 30)


def test_one_who_leaves_in_a_burst_is_an_error_of_the_connection() -> None:
    near, far = pair()
    with closing(near):
        far.close()
        with pytest.raises(ConnectionError):
            ask(near, now_ns)


def test_ranks_of_one_node_share_a_clock_and_compare_nothing() -> None:
    clocks = GlobalClocks(World(0, 1, ((0,),), (0,)), None)
    clock = clocks.of((0,), SingleProcessControl(), 1.0)
    assert clocks.of((0,), SingleProcessControl(), 1.0) is clock
    assert not clock.due and clock.lines == [Line()]
    assert clock.lines[0].own(np.array([BOOT_NS]))[0] == BOOT_NS and clock.error_ns(BOOT_NS) == 0.0


def test_nodes_meet_over_sockets_while_a_stranger_waits_at_every_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four nodes of one rank each on this host: their clocks are one, within the error of their
    lines."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    strangers: list[socket.socket] = []
    serve = PeerListener.serve

    def visited(self: PeerListener, *args: Any) -> None:
        strangers.append(socket.create_connection((self.address, self.port)))
        strangers[-1].sendall(bytes(24))
        serve(self, *args)

    monkeypatch.setattr(PeerListener, "serve", visited)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def work(rank: int) -> list[Line]:
        store = TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=20))
        with closing(
            GlobalClock(StoreControl(store, rank, 4), [[0], [1], [2], [3]], None, 20.0)
        ) as clock:
            clock.refresh(20.0)
            return clock.lines

    results = no_error(together(work, range(4)))
    assert results.count(results[0]) == 4 and len(strangers) == 1
    for line in results[0]:
        at = now_ns()
        assert abs(int(line.reference(np.array([at]))[0]) - at) <= line.error_at(at) + 2
    for stranger in strangers:
        with closing(stranger):
            assert stranger.recv(1) == b""


# ---------------------------------------------------------------- the window of a case


TOOK_NS = 100_000


def window() -> tuple[AgreedStarts, SampleCollector]:
    """Of two ranks on one node: both stamps are of the same clock."""
    planned: Any = SimpleNamespace(
        active=(0, 1), shape=SimpleNamespace(headline="max_over_ranks", ranks=None)
    )
    collector = SampleCollector(planned)
    clock = GlobalClocks(World(0, 1, ((0,),), (0,)), None).of((0,), SingleProcessControl(), 1.0)
    clock.lines = clock.lines * 2
    return AgreedStarts(clock, SingleProcessControl(), (0, 1), collector), collector


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
