"""Section matrix: how long all benchmarks take on two ranks of this machine. Runs only if named: it takes minutes."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass

from claim import Claim, run

from commbench.report.load import read_rows

BACKENDS = ("gloo", "mpi")
WORDS = ("benchmark=all", "layout=1x2", "sizes=octaves", "timing=quick")
TOTAL_MINUTES, CASE_S = 10.0, 0.8
LIMIT_S = 900


@dataclass(frozen=True)
class Whole:
    """One backend's run: seconds including its start, measured cases, and all cases."""

    backend: str
    seconds: float
    measured: int
    cases: int


def whole(backend: str) -> Whole:
    """Run all benchmarks; raises CalledProcessError if a case failed."""
    with tempfile.TemporaryDirectory(prefix="commbench-perf-") as output:
        begin = time.perf_counter()
        run([sys.executable, "-m", "commbench", f"backend={backend}", *WORDS, f"output={output}"], LIMIT_S)
        seconds = time.perf_counter() - begin
        status = read_rows([output])["status"]
    return Whole(backend, seconds, int((status == "ok").sum()), len(status))


def claims_matrix() -> list[Claim]:
    """Seconds per case and minutes in all; skipped cases take no time and do not count."""
    runs = [whole(backend) for backend in BACKENDS]
    made = [
        Claim(
            f"{result.backend}: seconds per case of the whole matrix",
            result.seconds / result.measured,
            CASE_S,
            f"{result.seconds:.0f} s for {result.measured} of {result.cases} cases, start and end included",
        )
        for result in runs
    ]
    minutes = sum(result.seconds for result in runs) / 60
    return [*made, Claim("minutes of the whole matrix", minutes, TOTAL_MINUTES, f"{' + '.join(BACKENDS)}")]
