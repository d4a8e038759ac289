"""A benchmark of a user's: a message without an answer, timed by its receiver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core.case import Benchmark, Shape
from commbench.core.payload import message
from commbench.core.program import BufferSpec, Pattern, Program, Recv, Send, View
from commbench.core.states import Headline
from commbench.core.variables import Cache, Case


@dataclass(frozen=True)
class OneWay(Benchmark):
    name = "one_way"
    axes = ("pair",)
    cache: ClassVar[Cache] = "warm"
    min_ranks = 2
    self_synchronising = True
    headline: ClassVar[Headline] = "receiver"

    def blocks(self, size: int) -> int:
        return 1

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, self.headline)

    def bus_factor(self, case: Case, size: int) -> float:
        return 1.0

    def program(self, case: Case, rank: int, size: int) -> Program:
        ((sender, receiver),) = case.pairs
        step = Send(View("data"), receiver) if rank == sender else Recv(View("data"), sender)
        return Program((BufferSpec("data", case.elements, case.dtype),), (step,))

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return message(rank, salt, case.elements) if rank == case.pairs[0][0] else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern:
        return message(case.pairs[0][0], salt, case.elements)


@dataclass(frozen=True)
class OfSender(OneWay):
    headline: ClassVar[Headline] = "initiator"
