"""A world that runs every step of the contract on a real library and compares every element of every buffer.

`python every_step.py gloo SIZE output=DIR` starts its own ranks; `mpirun ... every_step.py mpi LIBRARY output=DIR` is
one of them. Each rank writes DIR/RANK.json: what was wrong, what was refused and why, how many trials ran.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.mpi.backend import Mpi
from commbench.backends.mpi.lowering import NativeLowering, PythonLowering
from commbench.backends.torch.gloo import Gloo
from commbench.core.case import Case, Mode, World
from commbench.core.errors import Unsupported
from commbench.core.payload import DTYPES, dtype
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    BufferSpec,
    Copy,
    Gather,
    Irecv,
    Isend,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Step,
    View,
    WaitAll,
)
from commbench.core.protocols import Runner
from commbench.engines.lowered import Lowered, PythonRunner
from commbench.engines.native import NativeRunner
from commbench.world.control import StoreControl

Values = NDArray[np.int64]
POOL = 2  # copies of a buffer; as many repetitions, so that an in-place operation meets each copy once
SLOT, SLOTS = 1, 3  # the slots before and after the one in use must stay untouched
REDUCE = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
OTHER = 99  # in the blocks that an operation is to overwrite


def values(rank: int, count: int, factor: int = 1) -> Values:
    """What a rank holds: 1 to 4, so that a product of three ranks fits an int8, times a factor."""
    return factor * ((np.arange(count) * 7 + rank * 5 + np.arange(count) // 31) % 4 + 1)


@dataclass(frozen=True)
class Trial:
    """One operation on one rank. `before` and `after` are numbers a buffer; None was never written."""

    case: Case
    steps: tuple[Step, ...]
    before: Mapping[str, Values | int]  # an int is a length: nothing is written
    after: Mapping[str, Values]

    @property
    def label(self) -> str:
        case = self.case
        words = (case.benchmark, case.dtype, case.elements, case.in_place, case.reduction, case.root)
        return " ".join(str(word) for word in words)


def case_of(name: str, kind: str, count: int, **more: Any) -> Case:
    given = {"in_place": None, "reduction": None, "root": None, "pair": None} | more
    return Case(
        benchmark=name, backend="", engine="", timing_mode="host", timing="", sync="none", device="cpu", dtype=kind,
        layout="", message_bytes=count * dtype(kind).itemsize, elements=count, window=None, schedule=None, streams=None,
        staging="none", cache="warm", cuda_ipc="auto", interface=None, **given,
    )  # fmt: skip


def view(name: str, offset: int = 0, count: int | None = None) -> View:
    return View(name, SLOT, offset, count)


SOURCE, DATA = view("source"), view("data")


class Trials:
    """All trials of one rank for one dtype and block length, with these reductions and roots."""

    def __init__(
        self, rank: int, size: int, kind: str, count: int, reductions: Iterable[str], roots: Iterable[int]
    ) -> None:
        self.rank, self.size, self.kind, self.count = rank, size, kind, count
        self.reductions, self.roots = tuple(reductions), tuple(roots)
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
        for in_place, reduction in itertools.product((False, True), self.reductions):
            yield self.all_reduce(in_place, reduction)
            yield self.reduce_scatter(in_place, reduction)
            for root in self.roots:
                yield self.reduce(in_place, reduction, root)

    def trial(self, name: str, steps: Any, before: Any, after: Any, **more: Any) -> Trial:
        steps = steps if isinstance(steps, tuple) else (steps,)
        return Trial(case_of(name, self.kind, self.count, **more), steps, before, after)

    def messages(self) -> Iterator[Trial]:
        rank, size, count = self.rank, self.size, self.count
        mine = self.blocks[rank]
        yield self.trial("barrier", Barrier(), {}, {})
        yield self.trial("copy", Copy(SOURCE, DATA), {"source": mine, "data": count}, {"data": mine})
        for root in self.roots:
            begin = mine if rank == root else count
            yield self.trial("broadcast", Broadcast(DATA, root), {"data": begin}, {"data": values(root, count)})
        if size == 1:
            return
        right, left = (rank + 1) % size, (rank - 1) % size
        ring = (Irecv(DATA, left, 0), Isend(SOURCE, right, 1), WaitAll((0, 1)))
        yield self.trial("ring", ring, {"source": mine, "data": count}, {"data": self.blocks[left]})
        there, back = (Send(SOURCE, right), Recv(DATA, left)), (Recv(DATA, left), Send(SOURCE, right))
        steps = there if rank == 0 else back
        yield self.trial("relay", steps, {"source": mine, "data": count}, {"data": self.blocks[left]})

    def all_gather(self, in_place: bool) -> Trial:
        before: dict[str, Any] = {"data": self.size * self.count}
        if in_place:
            before = {"data": self.only_own(self.blocks[self.rank])}
        else:
            before["source"] = self.blocks[self.rank]
        step = AllGather(self.own if in_place else SOURCE, DATA)
        return self.trial("all_gather", step, before, {"data": self.joined}, in_place=in_place)

    def gather(self, in_place: bool, root: int) -> Trial:
        mine, words = self.blocks[self.rank], {"in_place": in_place, "root": root}
        if self.rank != root:
            return self.trial("gather", Gather(SOURCE, DATA, root), {"source": mine}, {"source": mine}, **words)
        if in_place:
            before: Any = {"data": self.only_own(mine)}
            return self.trial("gather", Gather(self.own, DATA, root), before, {"data": self.joined}, **words)
        before = {"source": mine, "data": self.size * self.count}
        return self.trial("gather", Gather(SOURCE, DATA, root), before, {"data": self.joined}, **words)

    def scatter(self, in_place: bool, root: int) -> Trial:
        mine, words = self.blocks[self.rank], {"in_place": in_place, "root": root}
        if self.rank != root:
            return self.trial("scatter", Scatter(SOURCE, DATA, root), {"data": self.count}, {"data": mine}, **words)
        if in_place:
            step, same = Scatter(DATA, self.own, root), {"data": self.joined}
            return self.trial("scatter", step, same, same, **words)
        before = {"source": self.joined, "data": self.count}
        after = {"source": self.joined, "data": mine}
        return self.trial("scatter", Scatter(SOURCE, DATA, root), before, after, **words)

    def all_to_all(self, in_place: bool) -> Trial:
        sent = [values(rank, self.size * self.count) for rank in range(self.size)]
        got = np.concatenate([self.block(whole, self.rank) for whole in sent])
        if in_place:
            step, before = AllToAll(DATA, DATA), {"data": sent[self.rank]}
            return self.trial("all_to_all", step, before, {"data": got}, in_place=True)
        before, after = {"source": sent[self.rank], "data": len(got)}, {"source": sent[self.rank], "data": got}
        return self.trial("all_to_all", AllToAll(SOURCE, DATA), before, after, in_place=False)

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
            before, after = ({"data": before["data"]}, {}) if in_place else ({"source": before["source"]}, {})
        return self.trial("reduce", step, before, after, in_place=in_place, reduction=reduction, root=root)

    def reduce_scatter(self, in_place: bool, reduction: str) -> Trial:
        held, result = self.contributions(self.size * self.count, reduction)
        mine, words = self.block(result, self.rank), {"in_place": in_place, "reduction": reduction}
        if in_place:
            after = held[self.rank].copy()
            after[self.rank * self.count : (self.rank + 1) * self.count] = mine
            before, step = {"data": held[self.rank]}, ReduceScatter(DATA, self.own, reduction)
            return self.trial("reduce_scatter", step, before, {"data": after}, **words)
        before, after = self.one_way(False, held[self.rank], self.count, mine)
        return self.trial("reduce_scatter", ReduceScatter(SOURCE, DATA, reduction), before, after, **words)

    def one_way(self, in_place: bool, held: Values, count: int, result: Values) -> tuple[Any, Any]:
        if in_place:
            return {"data": held}, {"data": result}
        return {"source": held, "data": count}, {"source": held, "data": result}

    def contributions(self, count: int, reduction: str) -> tuple[list[Values], Values]:
        """What every rank has, and their reduction. Averages are of multiples of the number of ranks: exact."""
        held = [values(rank, count, self.size if reduction == "avg" else 1) for rank in range(self.size)]
        return held, REDUCE[reduction](np.stack(held), axis=0).astype(np.int64)

    def only_own(self, mine: Values) -> Values:
        whole = np.full(self.size * self.count, OTHER)
        whole[self.rank * self.count : (self.rank + 1) * self.count] = mine
        return whole

    def block(self, whole: Values, index: int) -> Values:
        return whole[index * self.count : (index + 1) * self.count]


@dataclass
class Bench:
    """Runs trials on one communicator and keeps what went wrong."""

    backend: Any
    communicator: Any
    engine: str
    limit: int | None = None  # of an MPI call's count, lowered so that small buffers meet it

    def __post_init__(self) -> None:
        self.wrong: list[str] = []
        self.refused: dict[str, str] = {}
        self.ran = 0

    def all_of(self, kind: str, count: int, reductions: Iterable[str] = REDUCE, root: int | None = None) -> None:
        rank, size = self.communicator.hosted[0], self.communicator.size
        roots = range(size) if root is None else (root % size,)
        for trial in Trials(rank, size, kind, count, reductions, roots).every():
            self.run_trial(trial)

    def run_trial(self, trial: Trial) -> None:
        reason = self.backend.supports(trial.case, self.communicator.size)
        buffers = self.allocate(trial)
        try:
            runner = self.prepare(trial, buffers)
        except Unsupported as error:
            self.refused[trial.label] = str(error)
            if self.limit is None and str(error) != reason:
                self.wrong.append(f"{trial.label}: supports says {reason!r}, the lowering {str(error)!r}")
            return
        if reason is not None:
            self.refused[trial.label] = reason
            return
        runner(POOL)
        self.ran += 1
        self.check(trial, buffers)

    def allocate(self, trial: Trial) -> dict[str, Any]:
        buffers = {}
        for name, held in trial.before.items():
            count = held if isinstance(held, int) else len(held)
            buffers[name] = self.communicator.allocate(BufferSpec(name, count, trial.case.dtype, SLOTS), POOL)
            if not isinstance(held, int):
                for copy in range(POOL):
                    buffers[name].words(SLOT, copy)[:] = dtype(trial.case.dtype).encode(held)
        return buffers

    def prepare(self, trial: Trial, buffers: dict[str, Any]) -> Runner:
        program = Program(steps=trial.steps)
        if self.limit is not None:
            return self.limited(program, buffers)
        rank, mode = self.communicator.hosted[0], Mode(self.engine)
        runner: Runner = self.communicator.prepare({rank: program}, {rank: buffers}, mode)
        return runner

    def limited(self, program: Program, buffers: dict[str, Any]) -> Runner:
        mpi, comm, limit = self.communicator._mpi, self.communicator._comm, self.limit or 0
        if self.engine == "native":
            native = NativeLowering(mpi, comm, buffers, program, limit)
            return NativeRunner(Lowered.of(program, "none", native.call), POOL, keep=(native, buffers))
        python = PythonLowering(mpi, comm, buffers, limit)
        return PythonRunner(Lowered.of(program, "none", python.call), POOL)

    def check(self, trial: Trial, buffers: dict[str, Any]) -> None:
        for (name, buffer), copy in itertools.product(buffers.items(), range(POOL)):
            around = [buffer.words(slot, copy).view(np.uint8) for slot in (SLOT - 1, SLOT + 1)]
            if any((part != 0xA5).any() for part in around):
                self.wrong.append(f"{self.engine} {trial.label}: wrote beside {name}, copy {copy}")
            if name in trial.after:
                wanted = dtype(trial.case.dtype).encode(trial.after[name])
                count = int(np.count_nonzero(buffer.words(SLOT, copy) != wanted))
                if count:
                    self.wrong.append(f"{self.engine} {trial.label}: {count} wrong in {name}, copy {copy}")


def benches(backend: Any, communicator: Any) -> Iterator[Bench]:
    for engine in backend.engines:
        bench = Bench(backend, communicator, engine)
        bench.all_of("float32", 7)
        for kind in DTYPES if communicator.size != 2 else ("float16", "bfloat16", "int8"):  # enough for two ranks
            bench.all_of(kind, 5, root=-1)
        for count in (1, 2000, 70_001):
            bench.all_of("float32", count, ["sum"], root=1)
        yield bench
        yield from smaller(backend, communicator, engine)


def smaller(backend: Any, communicator: Any, engine: str) -> Iterator[Bench]:
    """The last ranks of the world as a group of their own: ranks there are not ranks of the world."""
    if communicator.size < 3:
        return
    group = communicator.subset((1, 2))
    if group is not None:
        bench = Bench(backend, group, engine)
        bench.all_of("float32", 7)
        yield bench


def mpi_rank(library: str, output: Path) -> None:
    from commbench.hardware.mpi_library import load_mpi

    comm = load_mpi(library, "funneled").COMM_WORLD
    backend, everybody = Mpi(library=library), tuple(range(comm.size))
    world = World(comm.rank, comm.size, (everybody,), (comm.rank,))
    communicator = backend.open(world, StoreControl(None, comm.rank, comm.size))
    done = list(benches(backend, communicator))
    for engine, count in itertools.product(backend.engines, (10, 11, 25)):
        limited = Bench(backend, communicator, engine, limit=10)
        limited.all_of("uint8", count, ["sum"])
        limited.refused.clear()
        done.append(limited)
    report(done, comm.rank, output)
    communicator.close()


def gloo_rank(rank: int, size: int, output: Path) -> None:
    import torch.distributed as dist

    world = World(rank, size, (tuple(range(size)),), (rank,))
    control = StoreControl(dist.FileStore(str(output / "store"), size), rank, size)
    communicator = Gloo().open(world, control)
    report(list(benches(Gloo(), communicator)), rank, output)
    communicator.close()


def report(done: list[Bench], rank: int, output: Path) -> None:
    refused = {label: reason for bench in done for label, reason in bench.refused.items()}
    results = {"wrong": [line for bench in done for line in bench.wrong], "refused": refused}
    output.mkdir(exist_ok=True)
    (output / f"{rank}.json").write_text(json.dumps(results | {"ran": sum(bench.ran for bench in done)}))


def main(kind: str, choice: str, output: Path) -> int:
    if kind == "mpi":
        mpi_rank(choice, output)
        return 0
    if "EVERY_STEP_RANK" in os.environ:
        gloo_rank(int(os.environ["EVERY_STEP_RANK"]), int(choice), output)
        os._exit(0)  # gloo's threads may abort an interpreter that ends, as in commbench.__main__
    output.mkdir()
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "EVERY_STEP_RANK": str(rank)})
        for rank in range(int(choice))
    ]
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3].removeprefix("output="))))
