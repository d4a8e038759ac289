"""The seed's quiz: a send buffer that is used again before the messages have left must not pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from benchmark_trials import BenchmarkTrial, case_of

from commbench.core.case import Shape
from commbench.core.program import (
    BufferSpec,
    Copy,
    Program,
    Send,
    Start,
    View,
    operation_of,
)
from commbench.features.exchange.exchange import Exchange

SIZES = pytest.mark.parametrize("size", [3, 4, 5])  # with one peer there is nothing to mix up
COUNT = 25
Fault = Callable[[int, Program], Program]


def is_send(step: Any) -> bool:
    return isinstance(step, Start) and isinstance(step.step, Send)


def sent_from(step: Any, view: View) -> Any:
    """A started message with other memory; a WaitAll as it is."""
    return replace(step, step=replace(step.step, data=view)) if isinstance(step, Start) else step


def one_send_slot(rank: int, program: Program) -> Program:
    def changed(step: Any) -> Any:
        return sent_from(step, View("send", 0)) if is_send(step) else step

    return replace(program, steps=tuple(changed(step) for step in program.steps))


def one_receive_slot(rank: int, program: Program) -> Program:
    def changed(step: Any) -> Any:
        return step if is_send(step) else sent_from(step, View("recv", 0))

    return replace(program, steps=tuple(changed(step) for step in program.steps))


def refilled_too_early(rank: int, program: Program) -> Program:
    """As in the quiz: each message is written over the one before, and what travels is the last
    one."""
    sends = [step.step for step in program.steps if is_send(step)]
    once = BufferSpec("once", COUNT, "float32")
    copies = (Copy(step.data, View("once")) for step in sends)
    steps = (sent_from(step, View("once")) if is_send(step) else step for step in program.steps)
    return Program((*program.buffers, once), (*copies, *steps))


@SIZES
@pytest.mark.parametrize("fault", [one_send_slot, one_receive_slot, refilled_too_early])
def test_a_buffer_used_for_all_peers_is_found(size: int, fault: Fault) -> None:
    right, wrong = (
        BenchmarkTrial(Exchange(), case_of(Exchange(), size, COUNT), size, change=change)
        for change in (same, fault)
    )
    for candidate in (right, wrong):
        candidate.run(1)
    assert set(right.wrong().values()) == {0}
    # one message a rank is the right one; 1 element in 15 agrees by chance
    strangers = size * (size - 2) * COUNT
    assert sum(wrong.wrong().values()) > 0.85 * strangers


def same(rank: int, program: Program) -> Program:
    return program


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_the_first_messages_of_all_ranks_go_to_different_ranks(size: int) -> None:
    sends = [
        [step.step.peer for step in program.steps if is_send(step)]
        for program in (
            Exchange().program(case_of(Exchange(), size, 1), rank, size) for rank in range(size)
        )
    ]
    assert sends == [[(rank + turn) % size for turn in range(1, size)] for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_receive_is_posted_before_the_first_send(size: int) -> None:
    for rank in range(size):
        kinds = [
            type(operation_of(step)).__name__
            for step in Exchange().program(case_of(Exchange(), size, 1), rank, size).steps
        ]
        assert kinds == ["Recv"] * (size - 1) + ["Send"] * (size - 1) + ["WaitAll"]


def test_a_rate_is_that_of_one_rank() -> None:
    assert Exchange().shape(case_of(Exchange(), 5, 100), 5) == Shape(
        4, 1600, "max_over_ranks", "exchange / messages that a rank sends", single=False
    )


# ---------------------------------------------------------------- the quiz as posted


def late_reader(rank: int, program: Program) -> Program:
    """As in a library that reads the one buffer only after the last message was written."""
    copies = [step for step in program.steps if isinstance(step, Copy)]
    others = [step for step in program.steps if not isinstance(step, Copy)]
    return replace(program, steps=(*copies, *others))


@SIZES
def test_one_buffer_for_all_is_right_where_each_message_is_read_at_once(size: int) -> None:
    case = case_of(Exchange(), size, COUNT, buffers="shared")
    at_once, late = (
        BenchmarkTrial(Exchange(), case, size, change=change) for change in (same, late_reader)
    )
    for candidate in (at_once, late):
        candidate.run(1)
    assert set(at_once.wrong().values()) == {0}
    assert sum(late.wrong().values()) > 0.85 * size * (size - 2) * COUNT


def test_one_buffer_for_all_is_written_for_each_peer_in_the_order_of_ranks() -> None:
    program = Exchange().program(case_of(Exchange(), 3, 5, buffers="shared"), 1, 3)
    kinds = [type(operation_of(step)).__name__ for step in program.steps]
    assert kinds == ["Copy", "Send", "Recv"] * 2 + ["WaitAll"]
    assert [step.step.peer for step in program.steps if is_send(step)] == [0, 2]
    assert program.unfinished == set()
