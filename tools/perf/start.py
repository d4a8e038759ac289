"""Section start: how long a command takes beside its measuring, over `python -c "import torch"` in
the same minute.

The stamps of the samples and time.monotonic are the same clock, so the first and the last
repetition are known to the nanosecond without any help of the program.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
from claim import LAUNCHES, Claim, run

WORDS = (
    "benchmark=all_reduce",
    "layout=1x2",
    "timing=fixed",
    "timing.repetitions=10",
    "writer=[console,parquet]",
)
BOUNDS = {"gloo": 1.6, "mpi": 2.2}
NEXT_JOB = 0.5
JOBS = 4


def claims_start() -> list[Claim]:
    """Import of torch, gloo, mpi and a sweep in turn; medians of the ratios within a turn: what
    else this machine does then slows all of a turn."""
    imports: list[float] = []
    ends: dict[str, list[tuple[float, float]]] = {backend: [] for backend in BOUNDS}
    further: list[float] = []
    for _ in range(LAUNCHES):
        begin = time.monotonic()
        run([sys.executable, "-c", "import torch"])
        imports.append(time.monotonic() - begin)
        for backend, seen in ends.items():
            begin, spans, end = measured(f"backend={backend}", "sizes=[8]")
            seen.append((spans[0][0] - begin, end - spans[-1][1]))
        _, spans, _ = measured(
            "-m", "backend=gloo", f"seed={','.join(str(seed) for seed in range(JOBS))}", "sizes=[8]"
        )
        further.append(
            statistics.median(later[0] - earlier[1] for earlier, later in pairwise(spans))
        )
    unit_s = statistics.median(imports)
    made = []
    for backend, bound in BOUNDS.items():
        first_s, last_s = (statistics.median(part) for part in zip(*ends[backend], strict=True))
        detail = (
            f"{first_s:.2f} s to the first repetition, {last_s:.2f} s after the last, import torch"
            f" {unit_s:.2f} s"
        )
        ratios = [
            (first + last) / unit
            for (first, last), unit in zip(ends[backend], imports, strict=True)
        ]
        made.append(
            Claim(
                f"{backend} 1x2: not measuring / import torch",
                statistics.median(ratios),
                bound,
                detail,
            )
        )
    detail = f"{statistics.median(further):.2f} s between the repetitions of two jobs"
    ratio = statistics.median(gap / unit for gap, unit in zip(further, imports, strict=True))
    made.append(Claim("gloo 1x2: a further job of a sweep / import torch", ratio, NEXT_JOB, detail))
    return made


def measured(*words: str) -> tuple[float, list[tuple[float, float]], float]:
    """Seconds: when the command began, the first and last repetition of each of its runs, when it
    had ended."""
    with tempfile.TemporaryDirectory(prefix="commbench-perf-") as output:
        begin = time.monotonic()
        run([sys.executable, "-m", "commbench", *words, *WORDS, f"output={output}"])
        end = time.monotonic()
        tables = [
            pq.read_table(file, columns=["start_ns", "end_ns"])
            for file in Path(output).glob("*/samples.parquet")
        ]
    stamps = [(table["start_ns"].to_numpy(), table["end_ns"].to_numpy()) for table in tables]
    return (
        begin,
        sorted((float(starts.min()) / 1e9, float(stops.max()) / 1e9) for starts, stops in stamps),
        end,
    )
