"""`make coverage`: how often the reported interval holds the truth here; rewrites the table in
docs/trust.md.

Forty nearly equal message sizes have nearly equal times, so a straight line through all of them is
closer to the truth than any single case. The share of the cases whose interval holds that line is
the coverage of the interval. A second run of the same configuration (A/A) shows how many cases have
intervals that do not even touch, and how many `commbench report` would call different.

`python tools/coverage WORD ...` measures the rows that contain all these words: `tcp quick`, `gloo
all_reduce default`. Each row is written as soon as it is measured, in place of the earlier one;
other rows stay.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import put_row

import commbench
from commbench.results.intervals import interval_of
from commbench.results.load import rows_of_frame
from commbench.stats.difference import Time, differ

SIZES = range(320, 640, 8)
WORLDS = {
    "Open MPI": ("backend=mpi", "backend.library=openmpi"),
    "MPICH": ("backend=mpi", "backend.library=mpich"),
    "gloo": ("backend=gloo",),
    "tcp": ("backend=tcp",),
}
BENCHMARKS = {
    "Open MPI": ("p2p_latency", "all_reduce"),
    "gloo": ("p2p_latency", "all_reduce"),
    "tcp": ("p2p_latency",),
}
TIMINGS = {"quick": 0.70, "default": 0.90}  # the least share that must hold the line
COLUMNS = (
    "library",
    "benchmark",
    "timing",
    "level",
    "holds the line",
    "half-width",
    "apart in A/A",
    "different in A/A",
    "flagged",
    "seconds",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


@dataclass(frozen=True)
class Row:
    """The coverage of one run; shares from 0 to 1."""

    library: str
    benchmark: str
    timing: str
    level: float
    held: float
    half_width: float  # median over cases, relative
    apart: float  # cases whose intervals of two runs do not touch
    different: float  # cases that the rule of report and crossover calls different
    flagged: float
    seconds: float

    @property
    def good(self) -> bool:
        return self.held >= TIMINGS[self.timing]

    def __str__(self) -> str:
        shares = (self.level, self.held, self.half_width, self.apart, self.different, self.flagged)
        return (
            f"| {self.library} | {self.benchmark} | {self.timing} | "
            + " | ".join(f"{100 * share:.0f} %" for share in shares)
            + f" | {self.seconds:.0f} |"
        )


def line_through(sizes: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The line of Theil and Sen at these sizes: the median of all slopes between two cases, then of
    all intercepts."""
    first, second = np.triu_indices(len(sizes), 1)
    slope = np.median((times[second] - times[first]) / (sizes[second] - sizes[first]))
    return np.asarray(np.median(times - slope * sizes) + slope * sizes)


def measured(library: str, benchmark: str, timing: str, folder: Path) -> tuple[pd.DataFrame, float]:
    """The cases of a run, and how long it took in seconds. Raises RuntimeError with the command's
    last lines."""
    words = [
        *WORLDS[library],
        f"benchmark=[{benchmark}]",
        f"timing={timing}",
        f"sizes={[*SIZES]}",
        f"output={folder}",
    ]
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "commbench", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            "\n".join([f"exit {done.returncode} of {words}", *done.stderr.splitlines()[-5:]])
        )
    return commbench.load(folder).sort_values("message_bytes"), time.monotonic() - begin


def _times(cases: pd.DataFrame) -> list[Time]:
    """What the report compares, of each case."""
    return [
        Time(median, (median.value,), row.run_id)
        for row in rows_of_frame(cases)
        if (median := interval_of(row)) is not None
    ]


def combinations() -> list[tuple[str, str, str]]:
    """Library, benchmark and timing of each row."""
    return [
        (library, benchmark, timing)
        for library, timing in product(WORLDS, TIMINGS)
        for benchmark in BENCHMARKS.get(library, ("p2p_latency",))
    ]


def coverage(library: str, benchmark: str, timing: str) -> Row:
    with tempfile.TemporaryDirectory(prefix="commbench-coverage-") as folder:
        runs = [measured(library, benchmark, timing, Path(folder) / side) for side in ("a", "b")]
    (cases, seconds), (again, _) = runs
    times = cases.median_s.to_numpy(dtype=np.float64)
    line = line_through(cases.message_bytes.to_numpy(dtype=np.float64), times)
    held = (cases.ci_low_s <= line) & (line <= cases.ci_high_s)
    low = np.maximum(cases.ci_low_s.to_numpy(), again.ci_low_s.to_numpy())
    high = np.minimum(cases.ci_high_s.to_numpy(), again.ci_high_s.to_numpy())
    return Row(
        library,
        benchmark,
        timing,
        float(cases.interval_level.median()),
        float(held.mean()),
        float(((cases.ci_high_s - cases.ci_low_s) / 2 / cases.median_s).median()),
        float((low > high).mean()),
        float(np.mean([differ(*pair) for pair in zip(_times(cases), _times(again), strict=True)])),
        float(cases.warnings.map(len).gt(0).mean()),
        seconds,
    )


def main(words: list[str]) -> int:
    """The exit status: 1 where a share is below what it must be, or a run fails."""
    good = True
    starts = [f"| {' | '.join(names)} | " for names in combinations()]
    for library, benchmark, timing in combinations():
        if not all(word in (library, benchmark, timing) for word in words):
            continue
        try:
            row = coverage(library, benchmark, timing)
        except RuntimeError as error:  # the others can be measured all the same
            print(f"{library} {benchmark} {timing}: {error}", file=sys.stderr)
            good = False
            continue
        print(row, "" if row.good else "BELOW", flush=True)
        put_row("trust.md", "coverage", HEAD, starts, str(row))
        good &= row.good
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
