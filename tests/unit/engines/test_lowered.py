"""Programs in the calls of a library: where the barrier goes, and the table of C calls."""

from __future__ import annotations

import pytest

from commbench.core.program import Barrier, Copy, Program, Send, Step, View
from commbench.engines.lowered import (
    ADDRESS,
    ARGS,
    CHECKED,
    MAX_ARGS,
    REGISTERS,
    ROW,
    WIDE,
    Lowered,
    NativeCall,
    call_table,
)

SEND, RESET = Send(View("data"), 1), Copy(View("source"), View("data"))
PROGRAM = Program(steps=(SEND, SEND), reset=(RESET,))


def kind(step: Step) -> str:
    return type(step).__name__


def test_a_barrier_comes_before_each_repetition_after_the_reset() -> None:
    assert Lowered.of(PROGRAM, "barrier", kind) == Lowered(("Send", "Send"), ("Copy", "Barrier"), ())


def test_a_self_synchronising_program_has_one_before_each_block() -> None:
    assert Lowered.of(PROGRAM, "none", kind) == Lowered(("Send", "Send"), ("Copy",), ("Barrier",))


def test_each_step_is_lowered_by_itself() -> None:
    seen: list[Step] = []
    Lowered.of(PROGRAM, "barrier", seen.append)
    assert seen == [SEND, SEND, RESET, Barrier()]


def test_a_program_with_agreed_starts_has_a_barrier_before_each_block_and_waits_for_them() -> None:
    assert Lowered.of(PROGRAM, "window", kind) == Lowered(("Send", "Send"), ("Copy",), ("Barrier",), windowed=True)


@pytest.mark.parametrize("count", [0, 1, REGISTERS, REGISTERS + 1, MAX_ARGS])
def test_a_row_of_the_table_holds_a_call_for_each_copy(count: int) -> None:
    calls = [
        NativeCall("f", 7, tuple((-1 - column, 2**62 + column) for column in range(count)), checked=count % 2 == 0)
    ]
    table = call_table(calls, 2)
    assert table.shape == (2, 1, ROW) and (table[:, 0, ADDRESS] == 7).all()
    assert (table[:, 0, CHECKED] == (count % 2 == 0)).all() and (table[:, 0, WIDE] == (count > REGISTERS)).all()
    assert table[:, 0, ARGS : ARGS + count].tolist() == [
        [-1 - column for column in range(count)], [2**62 + column for column in range(count)]
    ]  # fmt: skip
