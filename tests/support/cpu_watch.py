"""How much CPU each rank of a world used while a case was measured: /proc/PID/stat, read from outside."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

MARK = "COMMBENCH_WATCH"  # exported to a world, so that its ranks can be told from those of others
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
EVERY_S = 0.05
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class CpuWatch:
    """Readings by rank: CLOCK_MONOTONIC in ns, the clock of samples.parquet, and CPU seconds since the rank's start."""

    mark: str
    readings: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {MARK: self.mark}

    def shares(self, spans_ns: list[tuple[int, int]]) -> dict[int, float]:
        """CPU time / time of each rank inside the spans, each from one stamp to another; 1.0 is a whole core."""
        shares = {}
        for rank, readings in self.readings.items():
            used_s = time_s = 0.0
            for start_ns, end_ns in spans_ns:
                inside = [reading for reading in readings if start_ns <= reading[0] <= end_ns]
                assert len(inside) > 1, f"{(end_ns - start_ns) * 1e-9:.3f} s are too short to read rank {rank} twice"
                used_s += inside[-1][1] - inside[0][1]
                time_s += (inside[-1][0] - inside[0][0]) * 1e-9
            shares[rank] = used_s / time_s
        return shares

    def read(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended meanwhile
                rank = self._rank(process)
                if rank is not None:
                    self.readings.setdefault(rank, []).append((time.monotonic_ns(), _cpu_s(process)))

    def _rank(self, process: Path) -> int | None:
        """None for processes that are no ranks of this world, such as its launcher and what a rank has started."""
        command = (process / "cmdline").read_bytes()
        if b"commbench" not in command or b"/store.py" in command:  # that store has rank 0's environment
            return None
        words = (word.partition("=") for word in (process / "environ").read_text(errors="replace").split("\0"))
        environment = {name: value for name, _, value in words}
        if environment.get(MARK) != self.mark:
            return None
        return next((int(environment[name]) for name in RANKS if name in environment), None)


def measured_ns(samples: pd.DataFrame) -> list[tuple[int, int]]:
    """First start and last end of each case's measured repetitions."""
    cases = samples[samples.phase == "measure"].groupby("case_id")
    return [(int(case.start_ns.min()), int(case.end_ns.max())) for _, case in cases]


def _cpu_s(process: Path) -> float:
    """utime + stime, proc(5); the command before them may hold spaces."""
    words = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) * TICK_S


@contextmanager
def cpu_watch() -> Iterator[CpuWatch]:
    """Reads in a thread for as long as the block runs; start the world inside it, with `env` exported."""
    watch, over = CpuWatch(f"{os.getpid()}-{time.monotonic_ns()}"), threading.Event()

    def follow() -> None:
        while not over.wait(EVERY_S):
            watch.read()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
