"""The clocks of a GPU on a device that keeps a diary: what is enqueued when, and what each clock
takes in."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.variables import Mode
from commbench.engines.device import CALL_S, LEAST_HOLD_S, MOST_HOLD_S, EventTimed, device_runner
from commbench.engines.lowered import Call, Lowered, Rotating

MICROSECOND = 1000


class Diary:
    """See engines.device.GpuStream: a stream with a clock of its own, which moves on as work is
    done."""

    def __init__(self) -> None:
        self.words: list[str] = []  # what was done on the device, in order
        self.now_ns = 0
        self._queue = list[Callable[[], None]]()
        self.holds: list[float] = []
        self.captures = 0
        self.host_bound = 0
        self.eager = False

    def work(self, word: str, ns: int) -> Callable[..., None]:
        return lambda *args: self.enqueue(" ".join([word, *map(str, args)]), ns)

    def enqueue(self, word: str, ns: int) -> None:
        self.put(lambda: self._do(word, ns))

    def put(self, work: Callable[[], None]) -> None:
        """`eager`: the device is faster than the host, so everything is done at once."""
        work() if self.eager else self._queue.append(work)

    def _do(self, word: str, ns: int) -> None:
        self.words.append(word)
        self.now_ns += ns

    def synchronise(self) -> None:
        queue = self._queue
        self._queue = []
        for work in queue:
            work()
        self.words.append("|")

    def event(self) -> Stamp:
        return Stamp()

    def record(self, event: Stamp) -> None:
        event.ns = -1
        self.put(lambda: setattr(event, "ns", self.now_ns))

    def happened(self, event: Stamp) -> bool:
        return event.ns >= 0

    def elapsed_ns(self, begin: Stamp, end: Stamp) -> int:
        assert min(begin.ns, end.ns) >= 0
        return end.ns - begin.ns

    def hold(self, seconds: float) -> None:
        self.holds.append(seconds)
        self.enqueue("hold", int(seconds * 1e9))

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        queue = self._queue
        self._queue = []
        enqueue()
        captured = self._queue
        self._queue = queue
        return lambda: self._queue.extend(captured)


class Stamp:
    ns = -1


def lowered(diary: Diary) -> Lowered[Call]:
    return Lowered(
        steps=(Call(diary.work("a", 5 * MICROSECOND)), Call(diary.work("b", 2 * MICROSECOND))),
        before=(
            Call(diary.work("reset", 1000 * MICROSECOND)),
            Call(diary.work("barrier", 100 * MICROSECOND)),
        ),
        enter=(Call(diary.work("enter", MICROSECOND)),),
    )


def runner(diary: Diary, mode: str, connected: bool = False, pool: int = 1) -> Any:
    return device_runner(
        diary, lowered(diary), pool, Mode("python", timer=mode, connected=connected)
    )


@pytest.mark.parametrize("mode", ["host_sync", "device_event"])
def test_what_comes_after_the_steps_is_not_timed(mode: str) -> None:
    diary = Diary()
    calls = replace(lowered(diary), after=(Call(diary.work("after", 9 * MICROSECOND)),))
    stamps = device_runner(diary, calls, 1, Mode("python", timer=mode))(2)
    assert diary.words.count("after") == 2
    if mode == "device_event":
        assert (stamps[0, :, 1] - stamps[0, :, 0] == 7 * MICROSECOND).all()
    else:
        assert " ".join(diary.words).count("a b | after") == 2


def test_the_host_waits_before_and_behind_the_steps() -> None:
    diary = Diary()
    stamps = runner(diary, "host_sync")(2)
    assert " ".join(diary.words) == "enter |" + 2 * " reset barrier | a b |"
    assert (stamps[0, :, 1] > stamps[0, :, 0]).all() and (
        stamps[0, 1:, 0] >= stamps[0, :-1, 1]
    ).all()


@pytest.mark.parametrize("mode", ["device_event", "throughput", "graph"])
def test_events_take_in_the_steps_and_nothing_else(mode: str) -> None:
    diary = Diary()
    stamps = runner(diary, mode, connected=True)(3)[0]
    assert (stamps[:, 1] - stamps[:, 0]).tolist() == [7 * MICROSECOND] * 3
    assert (np.diff(stamps[:, 1]) > 0).all(), "in the order they ran, for a time line"
    untimed = mode == "graph"  # the first launch uploads a graph
    assert (
        diary.words.count("a") == diary.words.count("b") == 3 + untimed
        and diary.words.count("barrier") == 3
    )


@pytest.mark.parametrize("mode", ["device_event", "throughput"])
def test_calls_are_enqueued_while_the_device_is_busy_and_ranks_meet_behind_that(mode: str) -> None:
    diary = Diary()
    runner(diary, mode)(3)
    assert " ".join(diary.words) == "enter |" + 3 * " hold reset barrier a b |"
    assert diary.holds[0] == 4 * CALL_S and all(
        LEAST_HOLD_S <= hold_s <= MOST_HOLD_S for hold_s in diary.holds
    )
    assert diary.host_bound == 0


@pytest.mark.parametrize("mode", ["device_event", "throughput", "graph"])
def test_repetitions_whose_begin_came_before_the_host_was_done_are_counted(mode: str) -> None:
    diary = Diary()
    run = runner(diary, mode, connected=True)
    run(2)
    assert diary.host_bound == 0
    diary.eager = True
    run(3)
    assert diary.host_bound == 3


def test_twenty_calls_are_held_for_before_one_was_timed() -> None:
    diary = Diary()
    calls = Lowered(steps=(Call(diary.work("a", MICROSECOND)),) * 20)
    device_runner(diary, calls, 1, Mode("python", timer="throughput"))(1)
    assert diary.holds == [20 * CALL_S]


def test_a_slow_host_is_waited_for_and_never_for_long() -> None:
    diary = Diary()
    slow = 3e-3

    def step() -> None:
        time.sleep(slow)

    calls = Lowered((Call(step),), (), ())
    run = EventTimed(diary, calls, 1)
    run(2)
    assert 2 * slow <= diary.holds[1] <= MOST_HOLD_S
    slow = 15e-3
    run(2)
    assert diary.holds[-1] == MOST_HOLD_S


@pytest.mark.parametrize("mode", ["device_event", "graph"])
def test_the_hold_is_twice_the_time_that_enqueuing_took(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """On a host whose clock moves on by 1 ms whenever it is read."""
    readings = itertools.count(0, 1000 * MICROSECOND)
    monkeypatch.setattr("commbench.engines.device.now_ns", lambda: next(readings))
    diary = Diary()
    runner(diary, mode, connected=True)(3)
    assert diary.holds == pytest.approx([4 * CALL_S, 2e-3, 2e-3])


def test_a_first_use_is_not_captured() -> None:
    diary = Diary()
    runner(diary, "graph")(2)
    assert diary.captures == 0 and diary.words.count("a") == 2


def test_a_graph_is_captured_before_its_first_repetition_and_then_replayed() -> None:
    """So that no rank waits in a repetition for one whose capture has failed."""
    diary = Diary()
    run = runner(diary, "graph", connected=True)
    assert diary.captures == 1 and "a" not in diary.words
    run(3)
    run(2)
    assert diary.captures == 1 and diary.words.count("a") == 5 + 1


def test_a_graph_of_steps_that_have_run_is_a_replay_from_the_first_repetition_on() -> None:
    diary = Diary()
    runner(diary, "graph", connected=True)(2)
    assert diary.captures == 1 and diary.words.count("a") == 2 + 1
    assert " ".join(diary.words) == "| enter | a b |" + 2 * " hold reset barrier a b |"


@pytest.mark.parametrize("mode", ["host_sync", "device_event", "throughput", "graph"])
def test_repetitions_walk_through_the_copies(mode: str) -> None:
    diary = Diary()
    seen = []
    calls = Lowered((Call(seen.append, (Rotating((0, 1, 2)),)),))
    device_runner(diary, calls, 3, Mode("python", timer=mode))(4)
    wanted = [0, 1, 2, 0]
    assert seen == wanted or (mode == "graph" and seen[:1] == [0] and set(seen) == {0, 1, 2})


@pytest.mark.parametrize("mode", ["throughput", "graph"])
def test_the_calls_of_a_repetition_walk_through_the_copies(mode: str) -> None:
    """Else all but the first of them would find their data in the GPU's cache."""
    diary = Diary()
    seen: list[int] = []
    calls = Lowered((Call(seen.append, (Rotating((0, 1, 2)),)),) * 4)
    mode_of_4 = Mode("python", timer=mode, samples=4, connected=True)
    run = device_runner(diary, calls, 3, mode_of_4)
    assert seen == ([0, 1, 2, 0] if mode == "graph" else [])
    run(1)
    assert seen == [0, 1, 2, 0] and diary.captures == (1 if mode == "graph" else 0)


def test_what_goes_wrong_is_an_error_of_the_communication() -> None:
    def fail() -> None:
        raise RuntimeError("unhandled cuda error")

    with pytest.raises(CommunicationError, match="RuntimeError: unhandled cuda error"):
        device_runner(Diary(), Lowered((Call(fail),)), 1, Mode("python", timer="throughput"))(1)


def test_what_can_not_be_captured_is_unsupported_and_no_failure() -> None:
    class Plain(Diary):
        def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
            raise Unsupported("CUDA can't capture these calls in a graph")

    with pytest.raises(Unsupported, match="can't capture"):
        runner(Plain(), "graph", connected=True)


def test_a_rank_without_steps_captures_nothing_and_meets_the_others_all_the_same() -> None:
    diary = Diary()
    idle = Lowered(before=lowered(diary).before, enter=lowered(diary).enter)
    device_runner(diary, idle, 1, Mode("python", timer="graph", connected=True))(2)
    assert diary.captures == 0
    assert diary.words.count("barrier") == 2
