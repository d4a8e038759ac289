"""A benchmark and backends that break at a planned moment; otherwise they are commbench's own.

The plan is passed in the environment (PLAN, JSON). Each time a fault begins, its time is written to
a file in the plan's folder: `mark-0`, `mark-1` ... Faults from outside (a signal, a link) only
write this file and then wait for the process that watches the folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from combination import FULL_SHM, LAUNCHER, OUTPUT, PARENT, RENAMED, SIGNALS, START_S
from numpy.typing import NDArray

from commbench.backends.mpi.backend import Mpi
from commbench.backends.torch.gloo import Gloo
from commbench.benchmarks.all_reduce import AllReduce
from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.core.case import World
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Control
from commbench.core.variables import Case, Device, Mode
from commbench.features.tcp.backend import Tcp
from commbench.runtime import rendezvous
from commbench.runtime.launchers.registry import detect

PLAN = "COMMBENCH_FAULT"
DELAY_S = 0.5  # until a fault inside a library's call begins
LONG_S = 3600.0
WAIT_S = 20.0  # for a fault from outside to happen
RENAME_S = 2.0  # for the folder to be renamed
BLOCK = 10  # repetitions of a measured block; connect and warm-up have fewer
CALLS = {"gloo": 50_000, "mpi": 10_000_000, "tcp": 250_000}  # calls of a few bytes for some seconds


@dataclass(frozen=True)
class Plan:
    """`size` in bytes identifies the case; `times`: in how many worlds the fault happens."""

    fault: str
    phase: str
    rank: int
    size: int
    times: int
    folder: str

    @classmethod
    @cache
    def here(cls) -> Plan | None:
        """The plan of this process; None outside a world, as the command itself imports the plugins
        too."""
        return (
            cls(**json.loads(os.environ[PLAN]))
            if PLAN in os.environ and _rank() is not None
            else None
        )

    @property
    def pending(self) -> bool:
        return len(list(Path(self.folder).glob("mark-*"))) < self.times

    def mark(self) -> None:
        number = len(list(Path(self.folder).glob("mark-*")))
        aside = Path(self.folder) / f"aside-{number}"
        aside.write_text(repr(time.time()))
        aside.rename(Path(self.folder) / f"mark-{number}")


def _rank() -> int | None:
    place = detect(os.environ)
    return None if place is None else place.rank


def planned(phase: str, size: int | None = None, anyone: bool = False) -> Plan | None:
    """The plan, if it is for this phase and this rank."""
    plan = Plan.here()
    if plan is None or plan.phase != phase or (size is not None and size != plan.size):
        return None
    return plan if plan.pending and (anyone or plan.rank == _rank()) else None


def reach(phase: str, size: int | None = None) -> None:
    """Called when the rank reaches a phase of a case: break if that is planned."""
    plan = planned(phase, size)
    if plan is not None:
        plan.mark()
        FAULTS[plan.fault]()


# ---------------------------------------------------------------- faults


def _refuse() -> None:
    raise RuntimeError("planted")


def _sleep() -> None:
    time.sleep(LONG_S)


def _hold() -> None:
    """Hang in a C call that holds the GIL: no other thread of this rank runs."""
    ctypes.PyDLL(None).sleep(int(LONG_S))


def _signalled(number: int) -> Any:
    return lambda: os.kill(os.getpid(), number)


FAULTS: dict[str, Any] = {
    "kill": _signalled(signal.SIGKILL),
    "stop": _signalled(signal.SIGSTOP),
    "segfault": lambda: ctypes.string_at(0),
    "exit 0": lambda: os._exit(0),
    "exit 1": lambda: os._exit(1),
    "raise": _refuse,
    "hang": _sleep,
    "hang with GIL": _hold,
    FULL_SHM: lambda: None,  # it has been full from the start
}
FAULTS |= dict.fromkeys(OUTPUT, lambda: None)  # it concerns what the command prints
OUTSIDE = (*SIGNALS, *LAUNCHER, *PARENT, RENAMED, "link down")
FAULTS |= dict.fromkeys(OUTSIDE, lambda: time.sleep(WAIT_S))
FAULTS[RENAMED] = lambda: time.sleep(RENAME_S)  # then the run goes on
# by another rank
SENT = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segfault": signal.SIGSEGV}


# ---------------------------------------------------------------- where the faults happen


def shorten_start() -> None:
    """Called in every rank: those that wait for one that never starts wait START_S."""
    plan = Plan.here()
    if plan is not None and (plan.fault, plan.phase) == ("hang", "starting"):
        rendezvous.CONNECT_S = START_S
        rendezvous.FIRST_MEETING_S = START_S


class Opened:
    """A communicator of commbench that breaks at the planned moment."""

    def __init__(self, inner: Any, calls: int) -> None:
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def subset(self, ranks: Sequence[int]) -> Opened | None:
        inner = self._inner.subset(ranks)
        return None if inner is None else Opened(inner, self._calls)

    def allocate(self, spec: BufferSpec, pool: int) -> Any:
        size = spec.count * np.dtype(spec.dtype).itemsize
        plan = planned("preparing", size)
        if plan is None or plan.fault != "no memory":
            reach("preparing", size)
            return self._inner.allocate(spec, pool)
        plan.mark()
        before = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**20, before[1]))
        try:
            return self._inner.allocate(spec, pool)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    def prepare(self, programs: Mapping[int, Program], buffers: Any, mode: Mode) -> Any:
        inner = self._inner.prepare(programs, buffers, mode)
        specs = [spec for program in programs.values() for spec in program.buffers]
        size = max((spec.count * np.dtype(spec.dtype).itemsize for spec in specs), default=0)
        return Long(inner, size, self._calls)

    def close(self, abort: bool = False) -> None:
        reach("closing")
        self._inner.close(abort)


class Long:
    """A runner whose measured block of the planned case lasts for seconds, on all ranks."""

    def __init__(self, inner: Any, size: int, calls: int) -> None:
        self._inner = inner
        self._size = size
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, n: int) -> NDArray[np.int64]:
        if n < BLOCK or planned("in a call", self._size, anyone=True) is None:
            stamps: NDArray[np.int64] = self._inner(n)
            return stamps
        plan = planned("in a call", self._size)
        if plan is not None and plan.fault in ("raise", "hang"):
            reach("in a call", self._size)
        elif plan is not None:
            threading.Timer(DELAY_S, reach, ["in a call", self._size]).start()
        return np.ascontiguousarray(self._inner(max(n, self._calls))[:, -n:])


class _Moments:
    """Mixin for a benchmark: breaks at the start of a case, in its checks, or on rank 0 while it
    records."""

    seen = 0  # bytes of the case that was checked last

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Any:
        reach("at the start", case.message_bytes)
        return super().fill(case, rank, size, name, salt)  # type: ignore[misc]

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Any:
        _Moments.seen = case.message_bytes
        reach("in a check", case.message_bytes)
        return super().expected(case, rank, size, name, salt)  # type: ignore[misc]

    def bus_factor(self, case: Case, size: int) -> Any:
        """Called on rank 0 only, for the row of a case that has ended."""
        plan = Plan.here()
        if (
            plan is not None
            and plan.phase == "between cases"
            and plan.size == self.seen
            and plan.pending
        ):
            plan.mark()
            if plan.fault in SENT:
                os.kill(int((Path(plan.folder) / f"pid-{plan.rank}").read_text()), SENT[plan.fault])
            else:
                FAULTS[plan.fault]()
        return super().bus_factor(case, size)  # type: ignore[misc]


@dataclass(frozen=True)
class PlantedReduce(_Moments, AllReduce):
    pass


@dataclass(frozen=True)
class PlantedLatency(_Moments, P2PLatency):
    pass


class _Opening:
    """Mixin for a backend: breaks while the library is opened."""

    def open(self, world: World, control: Control, device: Device = "cpu") -> Any:
        plan = Plan.here()
        if plan is not None:
            (Path(plan.folder) / f"pid-{world.rank}").write_text(str(os.getpid()))
        reach("opening")
        return Opened(super().open(world, control, device), CALLS[self.name])  # type: ignore[misc, attr-defined]


@dataclass(frozen=True)
class PlantedGloo(_Opening, Gloo):
    pass


@dataclass(frozen=True)
class PlantedMpi(_Opening, Mpi):
    pass


@dataclass(frozen=True)
class PlantedTcp(_Opening, Tcp):
    pass


shorten_start()
reach("starting")
