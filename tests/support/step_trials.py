"""Every step of the contract as a program of one rank, with what its buffers hold before it and
must hold after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sample_cases import CASE

from commbench.core.payload import dtype
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToAllV,
    Barrier,
    Broadcast,
    BufferSpec,
    Copy,
    Gather,
    Group,
    In,
    Matmul,
    MemoryStream,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Sleep,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.core.variables import Case

Values = NDArray[np.int64]
SLOT = 1
SLOTS = 3  # the slots before and after the one in use must stay untouched
REDUCE = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
OTHER = 99  # in the blocks that an operation is to overwrite


def values(rank: int, count: int, factor: int = 1) -> Values:
    """What a rank holds: 1 to 4, so that a product of three ranks fits an int8, times a factor."""
    return factor * ((np.arange(count) * 7 + rank * 5 + np.arange(count) // 31) % 4 + 1)


@dataclass(frozen=True)
class Trial:
    """One operation on one rank. `before` and `after` are numbers a buffer; None was never
    written."""

    case: Case
    steps: tuple[Step, ...]
    before: Mapping[str, Values | int]  # an int is a length: nothing is written
    after: Mapping[str, Values]

    @property
    def label(self) -> str:
        case = self.case
        words = (
            case.benchmark,
            case.dtype,
            case.elements,
            case.in_place,
            case.reduction,
            case.root,
        )
        return " ".join(str(word) for word in words)


def case_of(name: str, kind: str, count: int, **more: Any) -> Case:
    sizes = {"message_bytes": count * dtype(kind).itemsize, "elements": count}
    return replace(CASE, benchmark=name, dtype=kind, **sizes, **more)


def view(name: str, offset: int = 0, count: int | None = None) -> View:
    return View(name, SLOT, offset, count)


SOURCE = view("source")
DATA = view("data")


class Trials:
    """All trials of one rank for one dtype and block length, with these reductions and roots."""

    def __init__(
        self,
        rank: int,
        size: int,
        kind: str,
        count: int,
        reductions: Iterable[str],
        roots: Iterable[int],
    ) -> None:
        self.rank = rank
        self.size = size
        self.kind = kind
        self.count = count
        self.reductions = tuple(reductions)
        self.roots = tuple(roots)
        self.own = view("data", rank * count, count)
        self.blocks = [values(owner, count) for owner in range(size)]
        self.joined = np.concatenate(self.blocks)

    def every(self) -> Iterator[Trial]:
        yield from self.messages()
        for in_place in (False, True):
            yield self.all_gather(in_place)
            yield self.all_to_all(in_place)
            for root in self.roots:
                yield self.gather(in_place, root)
                yield self.scatter(in_place, root)
        for traffic in ("uneven", "incast"):
            yield self.all_to_all_v(traffic)
        for in_place, reduction in itertools.product((False, True), self.reductions):
            yield self.all_reduce(in_place, reduction)
            yield self.reduce_scatter(in_place, reduction)
            for root in self.roots:
                yield self.reduce(in_place, reduction, root)

    def programs(self) -> Iterator[Trial]:
        """Programs of several steps, and operations that are started without waiting."""
        yield from self.started_alone()
        yield from self.started_together()
        yield from self.in_groups()
        yield from self.computing()

    def computing(self) -> Iterator[Trial]:
        """Every computation between a start and its wait."""
        for compute in (Sleep(1000), MemoryStream(100_001), Matmul(17, 2)):
            each = self.all_gather(False)
            (step,) = each.steps
            steps = (Start(step, 0), compute, WaitAll((0,)))
            yield self.trial(f"beside {compute}", steps, each.before, each.after)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Those of `in_groups`: even and odd ranks, halves, and all ranks in reverse order."""
        ranks = range(self.size)
        middle = (self.size + 1) // 2
        parts = [ranks[::2], ranks[1::2], ranks[:middle], ranks[middle:], ranks[::-1]]
        return tuple(dict.fromkeys(tuple(part) for part in parts if part))

    def in_groups(self) -> Iterator[Trial]:
        """Two groups of a rank at once, one after the other, and messages between ranks of one."""
        rank = self.rank
        ranks = range(self.size)
        middle = (self.size + 1) // 2
        parity = tuple(ranks[rank % 2 :: 2])
        half = tuple(ranks[:middle] if rank < middle else ranks[middle:])
        last = half[-1]
        before: dict[str, Values | int] = {
            "source": self.blocks[rank],
            "data": len(parity) * self.count,
            "more": self.blocks[last] if rank == last else self.count,
        }
        after = {
            "data": np.concatenate([self.blocks[other] for other in parity]),
            "more": self.blocks[last],
        }
        gather = In(parity, AllGather(SOURCE, DATA))
        broadcast = In(half, Broadcast(view("more"), len(half) - 1))
        both = (Start(gather, 0), Start(broadcast, 1))
        yield self.trial("groups at once", (*both, WaitAll((0, 1))), before, after)
        yield self.trial(
            "groups in two waits", (*both, WaitAll((1,)), WaitAll((0,))), before, after
        )
        yield self.trial("groups in turn", (gather, Barrier(), broadcast), before, after)
        if self.size == 1:
            return
        turned = tuple(ranks[::-1])
        own = turned.index(rank)
        right = (own + 1) % self.size
        left = (own - 1) % self.size
        there = (In(turned, Send(SOURCE, right)), In(turned, Recv(DATA, left)))
        steps = there if own == 0 else there[::-1]
        before = {"source": self.blocks[rank], "data": self.count}
        after = {"data": self.blocks[turned[left]]}
        yield self.trial("relay in a group", steps, before, after)
        ring = (
            Start(Send(SOURCE, (rank + 1) % self.size), 0),
            Start(Recv(view("more"), (rank - 1) % self.size), 1),
            WaitAll((0, 1)),
        )
        before = {**before, "more": self.count}
        after = {**after, "more": self.blocks[rank - 1]}
        yield self.trial("ring, then relay in a group", (*ring, *steps), before, after)

    def started_alone(self) -> Iterator[Trial]:
        collectives = [
            self.all_gather(False), self.all_to_all(False), self.all_to_all_v("uneven"),
            self.gather(False, 0), self.scatter(False, 0), self.all_reduce(True, "sum"),
            self.reduce(True, "sum", 0), self.reduce_scatter(False, "sum"),
            self.trial("barrier", Barrier(), {}, {}),
        ]  # fmt: skip
        for each in collectives:
            (step,) = each.steps
            yield replace(each, steps=(Start(step, 0), WaitAll((0,))))

    def started_together(self) -> Iterator[Trial]:
        """Two operations at once, completed in one wait, and in two."""
        rank = self.rank
        before: dict[str, Values | int] = {
            "source": self.blocks[rank],
            "data": self.size * self.count,
            "more": self.blocks[0] if rank == 0 else self.count,
        }
        after = {"data": self.joined, "more": self.blocks[0]}
        started = (Start(AllGather(SOURCE, DATA), 0), Start(Broadcast(view("more"), 0), 1))
        for waits in ([(0, 1)], [(0,), (1,)], [(1,), (0,)]):
            steps = (*started, *map(WaitAll, waits))
            yield self.trial(f"two_started {waits}", steps, before, after)
        if self.size == 1:
            return
        right = (rank + 1) % self.size
        left = (rank - 1) % self.size
        ring = (Start(Recv(DATA, left), 0), Start(Send(SOURCE, right), 1))
        before = {"source": self.blocks[rank], "data": self.count}
        after = {"data": self.blocks[left]}
        for waits in ([(0, 1)], [(0,), (1,)]):
            yield self.trial(f"ring {waits}", (*ring, *map(WaitAll, waits)), before, after)

    def trial(self, name: str, steps: Any, before: Any, after: Any, **more: Any) -> Trial:
        steps = steps if isinstance(steps, tuple) else (steps,)
        return Trial(case_of(name, self.kind, self.count, **more), steps, before, after)

    def messages(self) -> Iterator[Trial]:
        rank = self.rank
        size = self.size
        count = self.count
        mine = self.blocks[rank]
        yield self.trial("barrier", Barrier(), {}, {})
        yield self.trial(
            "copy", Copy(SOURCE, DATA), {"source": mine, "data": count}, {"data": mine}
        )
        for root in self.roots:
            begin = mine if rank == root else count
            yield self.trial(
                "broadcast", Broadcast(DATA, root), {"data": begin}, {"data": values(root, count)}
            )
        if size == 1:
            return
        right = (rank + 1) % size
        left = (rank - 1) % size
        ring = (Start(Recv(DATA, left), 0), Start(Send(SOURCE, right), 1), WaitAll((0, 1)))
        yield self.trial("ring", ring, {"source": mine, "data": count}, {"data": self.blocks[left]})
        there = (Send(SOURCE, right), Recv(DATA, left))
        back = (Recv(DATA, left), Send(SOURCE, right))
        steps = there if rank == 0 else back
        yield self.trial(
            "relay", steps, {"source": mine, "data": count}, {"data": self.blocks[left]}
        )

    def all_gather(self, in_place: bool) -> Trial:
        before: dict[str, Any] = {"data": self.size * self.count}
        if in_place:
            before = {"data": self.only_own(self.blocks[self.rank])}
        else:
            before["source"] = self.blocks[self.rank]
        step = AllGather(self.own if in_place else SOURCE, DATA)
        return self.trial("all_gather", step, before, {"data": self.joined}, in_place=in_place)

    def gather(self, in_place: bool, root: int) -> Trial:
        mine = self.blocks[self.rank]
        words = {"in_place": in_place, "root": root}
        if self.rank != root:
            return self.trial(
                "gather", Gather(SOURCE, DATA, root), {"source": mine}, {"source": mine}, **words
            )
        if in_place:
            before: Any = {"data": self.only_own(mine)}
            return self.trial(
                "gather", Gather(self.own, DATA, root), before, {"data": self.joined}, **words
            )
        before = {"source": mine, "data": self.size * self.count}
        return self.trial(
            "gather", Gather(SOURCE, DATA, root), before, {"data": self.joined}, **words
        )

    def scatter(self, in_place: bool, root: int) -> Trial:
        mine = self.blocks[self.rank]
        words = {"in_place": in_place, "root": root}
        if self.rank != root:
            return self.trial(
                "scatter",
                Scatter(SOURCE, DATA, root),
                {"data": self.count},
                {"data": mine},
                **words,
            )
        if in_place:
            step = Scatter(DATA, self.own, root)
            same = {"data": self.joined}
            return self.trial("scatter", step, same, same, **words)
        before = {"source": self.joined, "data": self.count}
        after = {"source": self.joined, "data": mine}
        return self.trial("scatter", Scatter(SOURCE, DATA, root), before, after, **words)

    def all_to_all(self, in_place: bool) -> Trial:
        sent = [values(rank, self.size * self.count) for rank in range(self.size)]
        got = np.concatenate([self.block(whole, self.rank) for whole in sent])
        if in_place:
            step = AllToAll(DATA, DATA)
            before = {"data": sent[self.rank]}
            return self.trial("all_to_all", step, before, {"data": got}, in_place=True)
        before = {"source": sent[self.rank], "data": len(got)}
        after = {"source": sent[self.rank], "data": got}
        return self.trial("all_to_all", AllToAll(SOURCE, DATA), before, after, in_place=False)

    def all_to_all_v(self, traffic: str) -> Trial:
        """Uneven blocks, some of them empty, or incast: all others send to the last rank only."""
        ranks = range(self.size)
        factors = [
            [
                (sender + 2 * receiver + 1) % 3
                if traffic == "uneven"
                else int(sender < receiver == self.size - 1)
                for receiver in ranks
            ]
            for sender in ranks
        ]
        counts = self.count * np.array(factors)
        sent = [values(sender, int(counts[sender].sum())) for sender in ranks]
        parts = [np.split(sent[sender], np.cumsum(counts[sender])[:-1]) for sender in ranks]
        mine = self.rank
        got = np.concatenate([parts[sender][mine] for sender in ranks])
        step = AllToAllV(
            SOURCE, DATA, tuple(counts[mine].tolist()), tuple(counts[:, mine].tolist())
        )
        before = {"source": sent[mine], "data": len(got)}
        after = {"source": sent[mine], "data": got}
        return self.trial(f"all_to_all_v {traffic}", step, before, after)

    def all_reduce(self, in_place: bool, reduction: str) -> Trial:
        held, result = self.contributions(self.count, reduction)
        step = AllReduce(DATA if in_place else SOURCE, DATA, reduction)
        before, after = self.one_way(in_place, held[self.rank], self.count, result)
        return self.trial("all_reduce", step, before, after, in_place=in_place, reduction=reduction)

    def reduce(self, in_place: bool, reduction: str, root: int) -> Trial:
        held, result = self.contributions(self.count, reduction)
        step = Reduce(DATA if in_place else SOURCE, DATA, reduction, root)
        before, after = self.one_way(in_place, held[self.rank], self.count, result)
        if self.rank != root:  # what becomes of their data in place is the library's affair
            before, after = (
                ({"data": before["data"]}, {}) if in_place else ({"source": before["source"]}, {})
            )
        return self.trial(
            "reduce", step, before, after, in_place=in_place, reduction=reduction, root=root
        )

    def reduce_scatter(self, in_place: bool, reduction: str) -> Trial:
        held, result = self.contributions(self.size * self.count, reduction)
        mine = self.block(result, self.rank)
        words = {"in_place": in_place, "reduction": reduction}
        if in_place:
            after = held[self.rank].copy()
            after[self.rank * self.count : (self.rank + 1) * self.count] = mine
            before = {"data": held[self.rank]}
            step = ReduceScatter(DATA, self.own, reduction)
            return self.trial("reduce_scatter", step, before, {"data": after}, **words)
        before, after = self.one_way(False, held[self.rank], self.count, mine)
        return self.trial(
            "reduce_scatter", ReduceScatter(SOURCE, DATA, reduction), before, after, **words
        )

    def one_way(self, in_place: bool, held: Values, count: int, result: Values) -> tuple[Any, Any]:
        if in_place:
            return {"data": held}, {"data": result}
        return {"source": held, "data": count}, {"source": held, "data": result}

    def contributions(self, count: int, reduction: str) -> tuple[list[Values], Values]:
        """What every rank has, and their reduction. Averages are of multiples of the number of
        ranks: exact."""
        held = [
            values(rank, count, self.size if reduction == "avg" else 1) for rank in range(self.size)
        ]
        return held, REDUCE[reduction](np.stack(held), axis=0).astype(np.int64)

    def only_own(self, mine: Values) -> Values:
        whole = np.full(self.size * self.count, OTHER)
        whole[self.rank * self.count : (self.rank + 1) * self.count] = mine
        return whole

    def block(self, whole: Values, index: int) -> Values:
        return whole[index * self.count : (index + 1) * self.count]


def allocated(
    trial: Trial, allocate: Callable[[BufferSpec, int], Any], pool: int
) -> dict[str, Any]:
    """The trial's buffers by name, `before` written into each copy of the slot in use."""
    buffers = {}
    for name, held in trial.before.items():
        count = held if isinstance(held, int) else len(held)
        buffers[name] = allocate(BufferSpec(name, count, trial.case.dtype, SLOTS), pool)
        if not isinstance(held, int):
            for copy in range(pool):
                buffers[name].words(SLOT, copy)[:] = dtype(trial.case.dtype).encode(held)
    return buffers


def wrong(trial: Trial, buffers: Mapping[str, Any], pool: int) -> Iterator[str]:
    """What is not as it must be after the trial: elements of the slot in use, and any byte of its
    neighbours."""
    for (name, buffer), copy in itertools.product(buffers.items(), range(pool)):
        around = [buffer.words(slot, copy).view(np.uint8) for slot in (SLOT - 1, SLOT + 1)]
        if any((part != 0xA5).any() for part in around):
            yield f"{trial.label}: wrote beside {name}, copy {copy}"
        if name in trial.after:
            wanted = dtype(trial.case.dtype).encode(trial.after[name])
            count = int(np.count_nonzero(buffer.words(SLOT, copy) != wanted))
            if count:
                yield f"{trial.label}: {count} wrong in {name}, copy {copy}"
