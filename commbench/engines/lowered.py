"""A program in the calls of a library: what a backend passes to an engine, and the forms that a library lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Case
from commbench.core.errors import Unsupported
from commbench.core.payload import dtype
from commbench.core.program import Barrier, Program, Step, View

MAX_ARGS = 8
REGISTERS = 6  # integer arguments that x86-64 passes in registers; more need the wider call
ADDRESS, CHECKED, WIDE, ARGS = 0, 1, 2, 3  # columns of a row of the call table; arguments follow from ARGS on
ROW = ARGS + MAX_ARGS

T = TypeVar("T")
UnsupportedForms = Mapping[tuple[str, bool], str]  # (operation, in place) -> the reason


@dataclass(frozen=True)
class Lowered(Generic[T]):
    """`enter` runs once per block, `before` ahead of the first stamp of each repetition, `steps` between the stamps.

    `windowed`: after `before`, the engine waits until the agreed start of the repetition.
    """

    steps: tuple[T, ...] = ()
    before: tuple[T, ...] = ()
    enter: tuple[T, ...] = ()
    windowed: bool = False

    @classmethod
    def of(cls, program: Program, sync: str, lower: Callable[[Step], T]) -> Lowered[T]:
        """Lower every step; sync "barrier" puts a barrier of the library before each repetition.

        Other programs have one before each block: the first sample of a self-synchronising program must not include
        the delay of its peer, and repetitions that begin at agreed instants need no barrier of their own.
        """
        each_repetition = sync == "barrier"
        before = (*program.reset, Barrier()) if each_repetition else program.reset
        enter = () if each_repetition else (Barrier(),)
        # in this order: a lowering may keep state from one step to the next
        steps, before_calls, enter_calls = (
            tuple(lower(step) for step in part) for part in (program.steps, before, enter)
        )
        return cls(steps, before_calls, enter_calls, sync == "window")


@dataclass(frozen=True)
class Rotating:
    """An argument with one value per copy of a rotation pool."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """One call from Python. `into` keeps the result as that request, `requests` passes such results as a list."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    into: int | None = None
    requests: tuple[int, ...] | None = None


def _nothing() -> None:
    pass


NO_CALL = Call(_nothing)  # of a step that has nothing to do


@dataclass(frozen=True)
class NativeCall:
    """One C call. `args` are integers and pointers; a tuple holds one value per copy of the pool."""

    name: str
    address: int
    args: tuple[int | tuple[int, ...], ...]
    checked: bool = True  # a return value other than 0 is an error


def call_table(calls: Sequence[NativeCall], pool: int) -> NDArray[np.int64]:
    """The table that the native engine runs, int64 [pool, calls, ROW]; negative C ints (handles) keep their value."""
    table = np.zeros((pool, len(calls), ROW), dtype=np.int64)
    for index, call in enumerate(calls):
        table[:, index, ADDRESS] = call.address
        table[:, index, CHECKED] = call.checked
        table[:, index, WIDE] = len(call.args) > REGISTERS
        for column, arg in enumerate(call.args, start=ARGS):
            table[:, index, column] = arg
    return table


def skip_reason(table: UnsupportedForms, case: Case) -> str | None:
    """The reason to skip the case; None if the table does not name its form."""
    return None if case.in_place is None else table.get((case.benchmark, case.in_place))


def check_form(table: UnsupportedForms, step: Step) -> None:
    """For programs of benchmarks that the table does not name. Raises Unsupported with the table's reason."""
    operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(step).__name__).lower()
    reason = table.get((operation, in_place(step)))
    if reason:
        raise Unsupported(reason)


def reduction_missing(library: str, case: Case) -> str | None:
    """Why NCCL or gloo can't reduce what the case asks for: averages are of floating types only, as gloo has no others
    and NCCL truncates those of integers."""
    if case.reduction is None:
        return None
    known = case.reduction in ("sum", "prod", "min", "max")
    if known or (case.reduction == "avg" and dtype(case.dtype).floating):
        return None
    return f"{library} has no reduction {case.reduction} of {case.dtype}"


def in_place(step: Step) -> bool:
    """Whether a collective sends from the buffer that it receives into; False for a step without two views."""
    send, recv = getattr(step, "send", None), getattr(step, "recv", None)
    return isinstance(send, View) and isinstance(recv, View) and send.buffer == recv.buffer
