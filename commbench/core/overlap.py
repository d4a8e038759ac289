"""Computation beside communication: the cases of an overlap, and the program of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .errors import ConfigError
from .program import (
    Compute,
    Matmul,
    MemoryStream,
    Message,
    Program,
    Sleep,
    Start,
    Step,
    WaitAll,
    operation_of,
)
from .variables import Case, Overlap, Timed

COMPUTE_TIME = re.compile(r"(?P<number>[1-9]\d{0,8})(?P<unit>us|ms)")
NS_PER_UNIT = {"us": 1_000, "ms": 1_000_000}
# a product takes some 10 us: its three matrices stay in a core's cache, and short operations still
# have several
MATRIX_SIZE = 64
# the timers that can time steps while an operation that was started before goes on
BESIDE_MODES = ("host", "device_event")


def compute_time_ns(text: str | None) -> int | None:
    """`100us` or `2ms`; None for as long as the communication takes. Raises ConfigError."""
    if text is None:
        return None
    match = COMPUTE_TIME.fullmatch(text)
    if match is None:
        raise ConfigError(f"compute={text} is not a time; write it like 100us or 2ms, or null")
    return int(match["number"]) * NS_PER_UNIT[match["unit"]]


def overlap_cases(case: Case) -> Iterator[Case]:
    """The cases that an overlap stands for; the case itself without one.

    That of the communication alone is the same for every computation. There is none of the
    computation beside communication where everything that was started ends before the clock is
    read.
    """
    if case.overlap is None:
        yield case if case.compute is None else replace(case, compute=None)
        return
    yield replace(case, overlap=None, compute=None, timed="communication")
    yield replace(case, timed="compute")
    yield replace(case, timed="together")
    if case.timer in BESIDE_MODES:
        yield replace(case, timed="compute_beside")


def sibling(case: Case, timed: Timed) -> Case:
    """Another case of the same overlap."""
    if timed == "communication":
        return replace(case, overlap=None, compute=None, timed=timed)
    return replace(case, timed=timed)


def compute_step(kind: Overlap, amount: int) -> Compute:
    """`amount`: ns to sleep, bytes to copy, or matrices to multiply."""
    match kind:
        case "sleep":
            return Sleep(amount)
        case "memory":
            return MemoryStream(amount)
        case "matmul":
            return Matmul(MATRIX_SIZE, amount)


def overlapped(program: Program, case: Case, amount: int | None) -> Program:
    """The program of a rank for what the case times. `amount`: see compute_step; None where it is
    not known yet, which changes no buffer and no operation."""
    parts = begun_and_rest(program.steps)
    if case.timed is None or parts is None:
        return program
    begun, rest = parts
    if case.timed == "communication" or case.overlap is None:
        return replace(program, steps=(*begun, *rest))
    compute = compute_step(case.overlap, amount or 1)
    match case.timed:
        case "compute":
            return Program(steps=(compute,))
        case "together":
            return replace(program, steps=(*begun, compute, *rest))
        case "compute_beside":
            return replace(program, lead=begun, steps=(compute,), after=rest)


def overlap_refusal(program: Program, case: Case, joins_messages: bool) -> str | None:
    """Why nothing can be computed beside the operation of that program; None if it can.
    `joins_messages`: see Backend."""
    if case.timed is None or not program.steps:
        return None
    parts = begun_and_rest(program.steps)
    if parts is None:
        return (
            f"{case.benchmark} waits more than once in a sample, so nothing can be computed beside"
            " it; overlap= takes collectives and p2p_bandwidth"
        )
    begun, _ = parts
    if joins_messages and any(isinstance(operation_of(step), Message) for step in begun):
        return (
            f"{case.backend} sends the messages of {case.benchmark} in the wait for them, so"
            " nothing goes on beside a computation; overlap= takes collectives"
        )
    return None


def begun_and_rest(
    steps: Sequence[Step], request: int = 0
) -> tuple[tuple[Step, ...], tuple[Step, ...]] | None:
    """The steps that only begin operations, and those that wait for them; None for a program that
    waits before it has begun all. `request`: that of a single operation."""
    if len(steps) == 1:
        (step,) = steps
        if isinstance(step, Start | WaitAll | Compute):
            return None
        return (Start(step, request),), (WaitAll((request,)),)
    begun = next((at for at, step in enumerate(steps) if not isinstance(step, Start)), len(steps))
    if begun == 0 or not all(isinstance(step, WaitAll) for step in steps[begun : begun + 1]):
        return None
    return tuple(steps[:begun]), tuple(steps[begun:])
