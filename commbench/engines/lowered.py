"""Programs as calls of a library, which a backend passes to an engine; forms that a library lacks;
the Python engine.

The Python engine generates source for each case, with every step unrolled: this costs 2.6 % of an 8
B ping-pong, a loop over a tuple of bound calls 9 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain, zip_longest
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.garbage_collection import collection_paused
from commbench.core.payload import dtype
from commbench.core.program import (
    AllReduce,
    Barrier,
    Compute,
    Copy,
    Message,
    OwnStep,
    Program,
    Reduce,
    ReduceScatter,
    Start,
    Step,
    View,
    WaitAll,
    group_of,
    operation_of,
)
from commbench.core.variables import Engine, Mode, ReductionName, Sync

now_ns = time.perf_counter_ns  # CLOCK_MONOTONIC on Linux: the same clock the native engine reads

T = TypeVar("T")
Lowers = TypeVar("Lowers", covariant=True)
UnsupportedForms = Mapping[tuple[type[Step], bool], str]  # (operation, in place) -> the reason


@dataclass(frozen=True)
class Lowered(Generic[T]):
    """`enter` runs once per block, `before` ahead of the first stamp of each repetition, `steps`
    between the stamps, `after` behind the second one.
    """

    steps: tuple[T, ...] = ()
    before: tuple[T, ...] = ()
    enter: tuple[T, ...] = ()
    after: tuple[T, ...] = ()

    @classmethod
    def of(cls, program: Program, sync: Sync | None, lower: Callable[[Step], T]) -> Lowered[T]:
        """Lower every step, but for those that become NO_CALL; sync "barrier" puts a barrier of the
        library before each repetition, any other one before each block, and None puts none: the
        first sample of a self-synchronising program must not include the delay of its peer. Raises
        Unsupported for messages without a WaitAll: libraries complete them at waits.
        """
        if program.unfinished:
            raise Unsupported(
                f"the program ends without a WaitAll for its requests {sorted(program.unfinished)}"
            )
        each_repetition = sync == "barrier"
        met = (Barrier(),) if each_repetition else ()
        enter = () if each_repetition or sync is None else (Barrier(),)
        before = (*program.reset, *met, *program.lead)
        # in this order: a lowering may keep state from one step to the next
        before_calls, steps, after, enter_calls = (
            tuple(call for step in part if (call := lower(step)) is not NO_CALL)
            for part in (before, program.steps, program.after, enter)
        )
        return cls(steps, before_calls, enter_calls, after)


@dataclass(frozen=True)
class Rotating:
    """An argument with one value per copy of a rotation pool."""

    values: tuple[Any, ...]

    def from_copy(self, first: int) -> Rotating:
        first %= len(self.values)
        return Rotating((*self.values[first:], *self.values[:first])) if first else self


@dataclass(frozen=True)
class Call:
    """One call from Python. `into` keeps the result as that request, `requests` passes such results
    as a list."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    into: int | None = None
    requests: tuple[int, ...] | None = None

    def from_copy(self, first: int) -> Call:
        """The call that has the copy `first` of the rotation pool where this one has the first."""
        args = (arg.from_copy(first) if isinstance(arg, Rotating) else arg for arg in self.args)
        return replace(self, args=tuple(args))


NO_CALL = Call(lambda: None)  # for a step that has nothing to do


def walking(calls: Sequence[Call], samples: int) -> tuple[Call, ...]:
    """The calls of consecutive samples, each sample with the next copy of the rotation pool."""
    calls_a_sample = max(len(calls) // samples, 1)
    return tuple(call.from_copy(number // calls_a_sample) for number, call in enumerate(calls))


@dataclass(frozen=True)
class NativeCall:
    """One C call. `args` are integers and pointers; a tuple holds one value per copy of the
    pool."""

    name: str
    address: int
    args: tuple[int | tuple[int, ...], ...]
    checked: bool = True  # a return value other than 0 is an error


def form_missing(table: UnsupportedForms, program: Program) -> str | None:
    """The table's reason for the first step whose form it names; None if it names none."""
    operations = map(operation_of, program.from_lead)
    reasons = (table.get((type(step), in_place(step))) for step in operations)
    return next((reason for reason in reasons if reason is not None), None)


def check_form(table: UnsupportedForms, step: Step) -> None:
    """Raises Unsupported if the table names the form of the step."""
    reason = form_missing(table, Program(steps=(step,)))
    if reason is not None:
        raise Unsupported(reason)


class GroupLowering(Protocol[Lowers]):
    """A lowering to the calls of a communicator, and the same to those of another one."""

    def call(self, step: Step) -> Lowers: ...

    def within(self, communicator: Any) -> GroupLowering[Lowers]: ...


class Posted(Generic[T]):
    """Messages that one call of a library completes: those that are started, and blocking ones
    behind them. The lowerings of groups share it."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.messages: list[T] = []
        self._requests: set[int] = set()

    def start(self, message: T, request: int) -> Call:
        self._requests.add(request)
        self.messages.append(message)
        return NO_CALL

    def refuse(self) -> None:
        """Raises Unsupported where messages have been started."""
        if self.messages:
            raise Unsupported(
                f"{self._backend} needs a WaitAll for started messages before anything but messages"
                " follows"
            )

    def completed(self, requests: Collection[int]) -> list[T]:
        """All messages, which are posted no longer. Raises Unsupported unless these requests are
        all that were started."""
        if self._requests != {*requests}:
            raise Unsupported(
                f"{self._backend} completes all started messages in one WaitAll, and no collectives"
                " with them"
            )
        messages = [*self.messages]
        self.messages.clear()
        self._requests.clear()
        return messages


def in_groups(lowering: GroupLowering[T], communicator: Any, mode: Mode) -> Callable[[Step], T]:
    """Lower the steps of each group to calls of its communicator, and those of a benchmark's own to
    calls of this one. Raises Unsupported for a group that is not open."""
    inner = {group: lowering.within(opened) for group, opened in mode.groups.items()}

    def call(step: Step) -> T:
        group = group_of(step)
        operation = operation_of(step)
        if group is None or isinstance(operation, WaitAll | Compute):
            return lowering.call(step)
        if group not in inner:
            raise Unsupported(f"the benchmark does not name the group {group} of this step")
        started = Start(operation, step.request) if isinstance(step, Start) else operation
        return inner[group].call(started)

    return with_own_steps(call, communicator, mode.engine)


def with_own_steps(
    lower: Callable[[Step], T], communicator: Any, engine: Engine
) -> Callable[[Step], T]:
    """Lower the steps that a benchmark brings along to its own calls, and all others as before."""

    def call(step: Step) -> T:
        own: T = step.call(communicator, engine) if isinstance(step, OwnStep) else lower(step)
        return own

    return call


def displacements(counts: Sequence[int]) -> list[int]:
    """Where each block begins, of blocks that follow one another without gaps."""
    return [0, *accumulate(counts)][:-1]


def has_collectives(program: Program) -> bool:
    """Whether a backend of messages and barriers only can't lower the program."""
    others = Message | WaitAll | Barrier | Copy | Compute | OwnStep
    operations = map(operation_of, program.from_lead)
    return bool(program.groups) or not all(isinstance(step, others) for step in operations)


@dataclass(frozen=True)
class Reduction:
    """What a step reduces: `count` elements a call and result block."""

    operation: type[Step]
    name: ReductionName
    dtype: str
    count: int


def reductions(program: Program) -> Iterator[Reduction]:
    """The reductions of its steps."""
    specs = {spec.name: spec for spec in program.buffers}
    for step in map(operation_of, program.from_lead):
        if isinstance(step, AllReduce | Reduce | ReduceScatter):
            # each rank has these: only the root may have the result of a Reduce
            view = step.recv if isinstance(step, ReduceScatter) else step.send
            spec = specs[view.buffer]
            yield Reduction(type(step), step.reduction, spec.dtype, view.count_in(spec))


def reduced_float8(program: Program) -> str | None:
    """The float8 type that the program reduces; None without one."""
    names = (each.dtype for each in reductions(program))
    return next((name for name in names if dtype(name).is_float8), None)


def reduction_missing(library: str, program: Program, has_float8: bool = False) -> str | None:
    """Which reduction of the program NCCL or gloo lacks; None if it has all. Averages are of
    floating types only: gloo has no others, and NCCL truncates those of integers."""
    for reduction in reductions(program):
        kind = dtype(reduction.dtype)
        is_known = reduction.name in ("sum", "prod", "min", "max")
        is_known = is_known or (reduction.name == "avg" and kind.floating)
        if not is_known or (kind.is_float8 and not has_float8):
            return f"{library} has no reduction {reduction.name} of {reduction.dtype}"
    return None


def in_place(step: Step) -> bool:
    """Whether a collective sends from the buffer that it receives into; False for a step without
    two views."""
    send = getattr(step, "send", None)
    recv = getattr(step, "recv", None)
    return isinstance(send, View) and isinstance(recv, View) and send.buffer == recv.buffer


# ---------------------------------------------------------------- the Python engine


class PythonRunner:
    """See Runner; hosts one rank."""

    calls: tuple[str, ...] = ()

    def __init__(self, calls: Lowered[Call], pool: int) -> None:
        self.progress = np.array([0, -1], dtype=np.int64)
        self._loop = LoopSource(pool).loop(calls)

    def __call__(self, n: int) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        with measured_calls():
            self._loop(n, stamps[0], self.progress, now_ns)
        return stamps


@contextmanager
def measured_calls() -> Iterator[None]:
    """Switch garbage collection off, as timeit does. Raises any error but Unsupported as a
    CommunicationError."""
    try:
        with collection_paused():
            yield
    except Unsupported:
        raise
    except Exception as error:
        raise CommunicationError(f"{type(error).__name__}: {error}") from error


class LoopSource:
    """Writes the source of a function and keeps the objects that it names."""

    def __init__(self, pool: int) -> None:
        self._pool = pool
        self._names: dict[str, Any] = {}
        self._rotating: list[str] = []

    def loop(self, calls: Lowered[Call]) -> Callable[..., None]:
        """A function of (n, stamps [n, 2], progress, clock)."""
        enter = [self._line(call) for call in calls.enter]
        before = [self._line(call) for call in calls.before]
        timed = [self._line(call) for call in calls.steps]
        after = [self._line(call) for call in calls.after]
        rotate = [f"{name} = {name}_all[k]" for name in self._rotating]
        advance = ["k += 1", f"if k == {self._pool}: k = 0"] if rotate else []
        body = [
            "progress[0] = r", *rotate, *before,
            "t0 = clock()", *timed, "t1 = clock()", *after,
            "row = stamps[r]; row[0] = t0; row[1] = t1", *advance,
        ]  # fmt: skip
        head = ["def loop(n, stamps, progress, clock):", *enter, "k = 0", "for r in range(n):"]
        return self._compile("\n        ".join(["\n    ".join(head), *body]))

    def routine(self, *parts: Sequence[Call]) -> Callable[..., None]:
        """The calls as a function of the copy that they use, and of what it calls between each two
        parts."""
        marks = [f"mark{number}" for number in range(len(parts) - 1)]
        lines = [[self._line(call) for call in part] for part in parts]
        rotate = [f"{name} = {name}_all[k]" for name in self._rotating]
        between = [[f"{mark}()"] for mark in marks]
        body = chain.from_iterable(chain.from_iterable(zip_longest(lines, between, fillvalue=())))
        head = f"def loop({', '.join(('k', *marks))}):"
        return self._compile("\n    ".join([head, *rotate, *body, "pass"]))

    def _compile(self, text: str) -> Callable[..., None]:
        """`text` defines `loop`; its names become local to a function around it, which is faster
        than globals."""
        source = (
            f"def make({', '.join(self._names)}):\n  {text.replace(chr(10), chr(10) + '  ')}\n "
            " return loop"
        )
        namespace = dict[str, Any]()
        exec(compile(source, "<commbench program>", "exec"), namespace)
        function: Callable[..., None] = namespace["make"](**self._names)
        return function

    def _line(self, call: Call) -> str:
        args = [self._name(arg) for arg in call.args]
        if call.requests is not None:
            args.append(f"[{', '.join(f'q{index}' for index in call.requests)}]")
        text = f"{self._name(call.function)}({', '.join(args)})"
        return text if call.into is None else f"q{call.into} = {text}"

    def _name(self, value: Any) -> str:
        """The name of this object in the source, by identity: 1, True and 1.0 are equal but not the
        same."""
        for name, named in self._names.items():
            if named is value:
                return name
        if isinstance(value, Rotating) and self._pool > 1:
            name = f"x{len(self._names)}"
            self._names[f"{name}_all"] = value.values
            self._rotating.append(name)
            return name
        name = f"v{len(self._names)}"
        self._names[name] = value.values[0] if isinstance(value, Rotating) else value
        return name
