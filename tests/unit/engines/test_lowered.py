"""Programs in the calls of a library, and the generated Python loop: what runs when, and what is
between the stamps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.program import (
    Barrier,
    Copy,
    Program,
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.engines.lowered import Call, Lowered, PythonRunner, Rotating, now_ns

SEND = Send(View("data"), 1)
RESET = Copy(View("source"), View("data"))
PROGRAM = Program(steps=(SEND, SEND), reset=(RESET,))


def kind(step: Step) -> str:
    return type(step).__name__


def test_a_barrier_comes_before_each_repetition_after_the_reset() -> None:
    assert Lowered.of(PROGRAM, "barrier", kind) == Lowered(
        ("Send", "Send"), ("Copy", "Barrier"), ()
    )


def test_a_self_synchronising_program_has_one_before_each_block() -> None:
    assert Lowered.of(PROGRAM, "none", kind) == Lowered(("Send", "Send"), ("Copy",), ("Barrier",))


def test_each_step_is_lowered_by_itself() -> None:
    seen: list[Step] = []
    Lowered.of(PROGRAM, "barrier", seen.append)
    assert seen == [RESET, Barrier(), SEND, SEND]


def test_a_lead_follows_the_barrier_and_what_comes_after_is_waited_for() -> None:
    view = View("data")
    begun = Start(Send(view, 1), 0)
    program = Program(steps=(RESET,), lead=(begun,), after=(WaitAll((0,)),))
    assert Lowered.of(program, "barrier", kind) == Lowered(
        ("Copy",), ("Barrier", "Start"), (), after=("WaitAll",)
    )


def test_messages_that_nobody_waits_for_are_refused_for_every_library() -> None:
    """Libraries complete them at waits: NCCL's group would never run, tcp would move nothing."""
    view = View("data")
    posted = (Start(Recv(view, 1), 0), Start(Send(view, 1), 1))
    for steps in ((*posted, WaitAll((0,))), (*posted, WaitAll((0, 1)), posted[1])):
        with pytest.raises(Unsupported, match=r"without a WaitAll for its requests \[1\]"):
            Lowered.of(Program(steps=steps), "none", kind)
    Lowered.of(Program(steps=(*posted, WaitAll((1,)), WaitAll((0,)))).repeated(2), "none", kind)


class Log:
    """Calls in the order they came, with the time of each."""

    def __init__(self) -> None:
        self.words: list[Any] = []
        self.times: list[int] = []

    def __call__(self, *args: Any) -> Any:
        self.words.append(args[0] if len(args) == 1 else args)
        self.times.append(now_ns())
        return f"request {len(self.words)}"


@pytest.fixture
def log() -> Log:
    return Log()


def run(calls: Lowered[Call], n: int, pool: int = 1) -> Any:
    return PythonRunner(calls, pool)(n)


def test_enter_runs_once_a_block_and_before_ahead_of_each_repetition(log: Log) -> None:
    runner = PythonRunner(
        Lowered(
            steps=(Call(log, ("a",)), Call(log, ("b",))),
            before=(Call(log, ("reset",)), Call(log, ("barrier",))),
            enter=(Call(log, ("enter",)),),
        ),
        pool=1,
    )
    runner(2)
    runner(1)
    each = ["reset", "barrier", "a", "b"]
    assert log.words == ["enter", *each, *each, "enter", *each]


def test_only_the_steps_lie_between_the_stamps(log: Log) -> None:
    stamps = run(
        Lowered((Call(log, ("step",)),), (Call(log, ("before",)),), (Call(log, ("enter",)),)), 50
    )
    begin, end = stamps[0].T
    before = log.times[1::2]
    step = log.times[2::2]
    assert (
        (np.array(before) <= begin).all()
        and (begin <= np.array(step)).all()
        and (np.array(step) <= end).all()
    )
    assert (np.diff(stamps.reshape(-1)) >= 0).all()
    assert stamps.shape == (1, 50, 2) and stamps.dtype == np.int64


def test_what_comes_after_the_steps_is_behind_the_stamps_and_gets_their_requests(log: Log) -> None:
    steps = (Call(log, ("step",), into=0),)
    after = (Call(log, ("after",), requests=(0,)),)
    stamps = run(Lowered(steps, after=after), 3)
    assert log.words[1::2] == [("after", [f"request {number}"]) for number in (1, 3, 5)]
    assert (stamps[0, :, 1] <= np.array(log.times[1::2])).all()


def test_a_pool_is_walked_through_and_starts_again_with_each_block(log: Log) -> None:
    copies = Rotating(("p", "q", "r"))
    runner = PythonRunner(
        Lowered((Call(log, (copies,)), Call(log, ("-",))), (Call(log, (copies, "before")),)), pool=3
    )
    runner(4)
    runner(1)
    assert log.words == [word for copy in "pqrpp" for word in ((copy, "before"), copy, "-")]


def test_a_pool_of_one_stays_where_it_is(log: Log) -> None:
    run(Lowered((Call(log, (Rotating(("only",)),)),)), 3)
    assert log.words == ["only"] * 3


def test_requests_of_this_repetition_are_passed_on(log: Log) -> None:
    send = Call(log, ("send",), into=1)
    receive = Call(log, ("receive",), into=0)
    run(Lowered((send, receive, Call(log, ("wait",), requests=(0, 1)))), 2)
    assert log.words[2] == ("wait", ["request 2", "request 1"])
    assert log.words[5] == ("wait", ["request 5", "request 4"])


def test_equal_arguments_are_not_mixed_up(log: Log) -> None:
    """1, True and 1.0 are equal but not the same; neither are two empty buffers."""
    first = np.zeros(0)
    second = np.zeros(0)
    run(Lowered((Call(log, (1, True, 1.0, first, second, first)),)), 1)
    seen = log.words[0]
    assert [type(argument) for argument in seen[:3]] == [int, bool, float]
    assert seen[3] is first and seen[4] is second and seen[5] is first


def test_progress_tells_the_repetition(log: Log) -> None:
    seen: list[int] = []
    runner: list[PythonRunner] = []
    runner.append(
        PythonRunner(Lowered((Call(lambda: seen.append(int(runner[0].progress[0]))),)), pool=1)
    )
    runner[0](4)
    assert seen == [0, 1, 2, 3]


def test_a_failed_call_becomes_a_communication_error_with_its_words() -> None:
    def fail() -> None:
        raise ValueError("connection reset by peer")

    with pytest.raises(CommunicationError, match=r"ValueError: connection reset by peer") as caught:
        run(Lowered((Call(fail),)), 3)
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_interrupt_is_no_communication_error() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Lowered((Call(interrupt),)), 1)
    assert gc.isenabled()


@pytest.fixture(params=[True, False], ids=["gc on", "gc off"])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    if not request.param:
        gc.disable()
    yield request.param
    gc.enable()


@pytest.mark.parametrize("function", [lambda: None, lambda: 1 / 0], ids=["fine", "failing"])
def test_the_collector_rests_while_timing_and_is_left_as_it_was(
    collecting: bool, function: Callable[[], Any]
) -> None:
    seen: list[bool] = []
    try:
        run(Lowered((Call(lambda: seen.append(gc.isenabled())), Call(function))), 1)
    except CommunicationError:
        assert seen
    assert seen == [False]
    assert gc.isenabled() == collecting
