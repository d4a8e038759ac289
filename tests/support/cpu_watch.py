"""How much CPU each rank of a world used while a case was measured, read from outside."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil

EVERY_S = 0.05


@dataclass
class CpuWatch:
    """Readings by rank: CLOCK_MONOTONIC in ns, the clock of samples.parquet, and CPU seconds since
    the rank's start.

    `results` is the folder in which the world's run will be; its run.json names the ranks'
    processes.
    """

    results: Path
    ranks: dict[int, psutil.Process] = field(default_factory=dict)
    readings: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    def shares(self, spans_ns: list[tuple[int, int]]) -> dict[int, float]:
        """CPU time / time of each rank inside the spans, each from one stamp to another; 1.0 is a
        whole core."""
        shares = {}
        for rank, readings in self.readings.items():
            used_s = time_s = 0.0
            for start_ns, end_ns in spans_ns:
                inside = [reading for reading in readings if start_ns <= reading[0] <= end_ns]
                assert len(inside) > 1, (
                    f"{(end_ns - start_ns) * 1e-9:.3f} s are too short to read rank {rank} twice"
                )
                used_s += inside[-1][1] - inside[0][1]
                time_s += (inside[-1][0] - inside[0][0]) * 1e-9
            shares[rank] = used_s / time_s
        return shares

    def read(self) -> None:
        for run in self.results.glob("*/run.json") if not self.ranks else ():
            names = json.loads(run.read_text()).get("processes", {})
            self.ranks = {
                int(re.findall(r"\d+", name)[0]): psutil.Process(int(pid))
                for pid, name in names.items()
            }
        for rank, process in self.ranks.items():
            with suppress(psutil.NoSuchProcess):  # ended meanwhile
                used = process.cpu_times()
                self.readings.setdefault(rank, []).append(
                    (time.monotonic_ns(), used.user + used.system)
                )


def measured_ns(samples: pd.DataFrame) -> list[tuple[int, int]]:
    """First start and last end of each case's measured repetitions."""
    cases = samples[samples.phase == "measure"].groupby("case_id")
    return [(int(case.start_ns.min()), int(case.end_ns.max())) for _, case in cases]


@contextmanager
def cpu_watch(results: Path) -> Iterator[CpuWatch]:
    """Reads in a thread for as long as the block runs; start the world inside it."""
    watch = CpuWatch(results)
    over = threading.Event()

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
