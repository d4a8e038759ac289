"""A program in a library's own calls: what a backend hands to an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from commbench.core.program import Barrier, Program, Step

T = TypeVar("T")


@dataclass(frozen=True)
class Lowered(Generic[T]):
    """`enter` runs once a block, `before` ahead of the first stamp of each repetition, `steps` between the stamps.

    `windowed`: after `before` the engine waits until the instant that the repetition's start was agreed for.
    """

    steps: tuple[T, ...] = ()
    before: tuple[T, ...] = ()
    enter: tuple[T, ...] = ()
    windowed: bool = False

    @classmethod
    def of(cls, program: Program, sync: str, call: Callable[[Step], T]) -> Lowered[T]:
        """Lower every step with `call`; sync "barrier" puts a barrier of the library before each repetition.

        A self-synchronising program has one before each block: its first sample must not hold the peer's delay. So has
        a program whose repetitions begin at agreed instants.
        """
        each = sync == "barrier"
        before = (*program.reset, Barrier()) if each else program.reset
        enter = () if each else (Barrier(),)
        steps, before_calls, enter_calls = (
            tuple(call(step) for step in part) for part in (program.steps, before, enter)
        )
        return cls(steps, before_calls, enter_calls, sync == "window")
