"""A collective that the ranks of each node run among themselves, on all nodes at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from commbench.core.case import Benchmark, Shape
from commbench.core.program import (
    BufferSpec,
    Copy,
    Group,
    In,
    Operation,
    Pattern,
    Program,
    Start,
    Step,
    WaitAll,
)
from commbench.core.variables import Case

TAKEN_OVER = ("name", "axes", "cache", "min_ranks", "self_synchronising")
# of operations of given pairs, or with groups of their own
REFUSED_AXES = frozenset({"pair", "pairs", "workload", "traffic"})


@dataclass(frozen=True)
class OnEachNode(Benchmark):
    """`inner` with the ranks of one node as its ranks, of which a layout has `ranks` on each node.

    Case.node names the nodes that take part: all in a run, one in a row.
    """

    # those of `inner`, once there is one
    name = ""
    axes = ()
    cache = "warm"
    min_ranks = 1
    self_synchronising = False
    inner: Benchmark
    ranks: int

    def __post_init__(self) -> None:
        for fact in TAKEN_OVER:
            object.__setattr__(self, fact, getattr(self.inner, fact))

    def blocks(self, size: int) -> int:
        return self.inner.blocks(self.ranks)

    def recorded_inputs(self) -> str:
        return self.inner.recorded_inputs()

    def variants(self, case: Case, size: int) -> Iterator[Case]:
        nodes = " ".join(map(str, range(size // self.ranks)))
        return (replace(each, node=nodes) for each in self.inner.variants(case, self.ranks))

    def refusal(self, case: Case, size: int) -> str | None:
        if self.ranks == 1 and "staging" not in self.axes:
            return (
                f"layout {case.layout} has one rank on each node, which has no others there to"
                f" communicate with; use more ranks a node, such as layout={size}x2"
            )
        if case.root is not None and case.root >= self.ranks:
            return f"root {case.root} is not on a node, whose ranks are 0 to {self.ranks - 1}"
        return self.inner.refusal(case, self.ranks)

    def program(self, case: Case, rank: int, size: int) -> Program:
        if rank // self.ranks not in _nodes_of(case):
            return Program()
        own = self.inner.program(case, rank % self.ranks, self.ranks)
        if size == self.ranks:
            return own
        group = self._group(rank // self.ranks)
        return replace(own, steps=tuple(_in_group(step, group) for step in own.steps))

    def active(self, case: Case, size: int) -> Sequence[int]:
        return [rank for node in _nodes_of(case) for rank in self._group(node)]

    def buffers(self, case: Case, rank: int, size: int) -> tuple[BufferSpec, ...]:
        if rank // self.ranks not in _nodes_of(case):
            return ()
        return self.inner.buffers(case, rank % self.ranks, self.ranks)

    def groups(self, case: Case, size: int) -> Sequence[Group]:
        return [] if size == self.ranks else [self._group(node) for node in _nodes_of(case)]

    def of_row(self) -> Benchmark:
        return self.inner

    def shape(self, case: Case, size: int) -> Shape:
        return self.inner.shape(case, self.ranks)

    def bus_factor(self, case: Case, size: int) -> float | None:
        return self.inner.bus_factor(case, self.ranks)

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.inner.fill(case, rank % self.ranks, self.ranks, name, salt)

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.inner.expected(case, rank % self.ranks, self.ranks, name, salt)

    def _group(self, node: int) -> Group:
        return tuple(range(node * self.ranks, (node + 1) * self.ranks))


def _nodes_of(case: Case) -> list[int]:
    return list(map(int, (case.node or "").split()))


def _in_group(step: Step, group: Group) -> Step:
    """The step in the group; a copy needs no other rank."""
    match step:
        case Start(inner, request):
            return Start(cast("Operation | In", _in_group(inner, group)), request)
        case WaitAll() | Copy():
            return step
    return In(group, cast(Operation, step))
