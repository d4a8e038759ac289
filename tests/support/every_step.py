"""A world that runs every step of the contract on a real library and compares every element of
every buffer.

`python every_step.py gloo SIZE output=DIR` starts its own ranks; `mpirun ... every_step.py mpi
LIBRARY output=DIR` is one of them. Each rank writes DIR/RANK.json: what was wrong, what was refused
and why, how many trials ran.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from step_trials import REDUCE, Trial, Trials, allocated, wrong

from commbench.backends.mpi.backend import Mpi
from commbench.backends.mpi.lowering import NativeLowering, PythonLowering
from commbench.backends.torch.gloo import Gloo
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.core.payload import DTYPES
from commbench.core.program import Program
from commbench.core.protocols import Communicator, Runner
from commbench.core.variables import Mode
from commbench.engines.lowered import Lowered, PythonRunner
from commbench.engines.native import NativeRunner
from commbench.runtime.control import StoreControl

# copies of a buffer; as many repetitions, so that an in-place operation meets each copy once
POOL = 2
LATE_S = 0.5
ENOUGH_FOR_TWO_RANKS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")


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
        self.groups: dict[Any, Any] = {}

    def all_of(
        self, kind: str, count: int, reductions: Iterable[str] = REDUCE, root: int | None = None
    ) -> None:
        rank = self.communicator.hosted[0]
        size = self.communicator.size
        roots = range(size) if root is None else (root % size,)
        for trial in Trials(rank, size, kind, count, reductions, roots).every():
            self.run_trial(trial)

    def programs_of(self, kind: str, count: int) -> None:
        rank = self.communicator.hosted[0]
        trials = Trials(rank, self.communicator.size, kind, count, ["sum"], [0])
        if not self.groups:
            opened = {group: self.communicator.subset(group) for group in sorted(trials.groups)}
            self.groups = {group: own for group, own in opened.items() if own is not None}
        for trial in trials.programs():
            self.run_trial(trial)

    def run_trial(self, trial: Trial) -> None:
        buffers = allocated(trial, self.communicator.allocate, POOL)
        program = Program(tuple(buffer.spec for buffer in buffers.values()), trial.steps)
        reason = self.backend.supports(trial.case, self.communicator.size, program)
        try:
            runner = self.prepare(trial, buffers)
        except Unsupported as error:
            self.refused[trial.label] = str(error)
            if self.limit is None and str(error) != reason:
                self.wrong.append(
                    f"{trial.label}: supports says {reason!r}, the lowering {str(error)!r}"
                )
            return
        if reason is not None:
            self.refused[trial.label] = reason
            return
        runner(POOL)
        self.ran += 1
        self.wrong += [f"{self.engine} {line}" for line in wrong(trial, buffers, POOL)]

    def prepare(self, trial: Trial, buffers: dict[str, Any]) -> Runner:
        program = Program(steps=trial.steps)
        if self.limit is not None:
            return self.agreed_limited(program, buffers)
        rank = self.communicator.hosted[0]
        mode = Mode(self.engine, groups=self.groups)
        runner: Runner = self.communicator.prepare({rank: program}, {rank: buffers}, mode)
        return runner

    def agreed_limited(self, program: Program, buffers: dict[str, Any]) -> Runner:
        """As in a run: what one rank refuses, no rank calls. Uneven blocks are larger on some."""
        runner = None
        problem = None
        try:
            runner = self.limited(program, buffers)
        except Unsupported as error:
            problem = str(error)
        problems = self.communicator.comm.allgather(problem)
        first = next((problem for problem in problems if problem is not None), None)
        if runner is None or first is not None:
            raise Unsupported(first)
        return runner

    def limited(self, program: Program, buffers: dict[str, Any]) -> Runner:
        mpi = self.communicator.mpi
        comm = self.communicator.comm
        limit = self.limit or 0
        if self.engine == "native":
            native = NativeLowering(mpi, comm, buffers, program, limit)
            return NativeRunner(
                Lowered.of(program, "none", native.call), POOL, keep=(native, buffers)
            )
        python = PythonLowering(mpi, comm, buffers, limit)
        return PythonRunner(Lowered.of(program, "none", python.call), POOL)


def benches(backend: Any, communicator: Any) -> Iterator[Bench]:
    for engine in backend.engines:
        bench = Bench(backend, communicator, engine)
        bench.all_of("float32", 7)
        bench.programs_of("float32", 7)
        bench.programs_of("float32", 70_001)
        for kind in DTYPES if communicator.size != 2 else ENOUGH_FOR_TWO_RANKS:
            bench.all_of(kind, 5, root=-1)
        for count in (1, 2000, 70_001):
            bench.all_of("float32", count, ["sum"], root=1)
        yield bench
        yield from smaller(backend, communicator, engine)


def smaller(backend: Any, communicator: Any, engine: str) -> Iterator[Bench]:
    """The last ranks of the world as a group of their own: ranks there are not ranks of the
    world."""
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
    backend = Mpi(library=library)
    everybody = tuple(range(comm.size))
    world = World(comm.rank, comm.size, (everybody,), (comm.rank,))
    communicator = backend.open(world, StoreControl(None, comm.rank, comm.size))
    done = list(benches(backend, communicator))
    for engine, count in itertools.product(backend.engines, (10, 11, 25)):
        limited = Bench(backend, communicator, engine, limit=10)
        limited.all_of("uint8", count, ["sum"])
        limited.refused.clear()
        done.append(limited)
    report(done, comm.rank, output, delivery_s(communicator))
    communicator.close()


def delivery_s(communicator: Communicator) -> float:
    """How long this rank delivers; the last one begins LATE_S after the others."""
    if communicator.hosted[0] == communicator.size - 1:
        time.sleep(LATE_S)
    begin_s = time.monotonic()
    communicator.deliver()
    return time.monotonic() - begin_s


def gloo_rank(rank: int, size: int, output: Path) -> None:
    import torch.distributed as dist

    world = World(rank, size, (tuple(range(size)),), (rank,))
    control = StoreControl(dist.FileStore(str(output / "store"), size), rank, size)
    communicator = Gloo().open(world, control)
    report(list(benches(Gloo(), communicator)), rank, output)
    communicator.close()


def report(done: list[Bench], rank: int, output: Path, delivery_s: float = 0) -> None:
    refused = {label: reason for bench in done for label, reason in bench.refused.items()}
    wrong = [line for bench in done for line in bench.wrong]
    results = {"wrong": wrong, "refused": refused, "delivery_s": delivery_s}
    output.mkdir(exist_ok=True)
    (output / f"{rank}.json").write_text(
        json.dumps(results | {"ran": sum(bench.ran for bench in done)})
    )


def main(kind: str, choice: str, output: Path) -> int:
    if kind == "mpi":
        mpi_rank(choice, output)
        return 0
    if "EVERY_STEP_RANK" in os.environ:
        gloo_rank(int(os.environ["EVERY_STEP_RANK"]), int(choice), output)
        os._exit(0)  # gloo's threads may abort an interpreter that ends, as in commbench.__main__
    output.mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, "EVERY_STEP_RANK": str(rank)}
        )
        for rank in range(int(choice))
    ]
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3].removeprefix("output="))))
