"""Section matrix: how long all benchmarks take on two ranks of this machine. Runs only if named: it
takes minutes."""

from __future__ import annotations

import sys
import tempfile
import time

from claim import Claim, run

from commbench.results.load import read_rows

BACKENDS = ("gloo", "mpi")
WORDS = ("benchmark=all", "layout=1x2", "sizes=octaves", "timing=quick")
TOTAL_MINUTES = 10.0
CASE_S = 0.8
LIMIT_S = 900


def claims_matrix() -> list[Claim]:
    """Seconds per case and minutes in all; skipped cases take no time and do not count."""
    made = []
    total_s = 0.0
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory(prefix="commbench-perf-") as output:
            begin = time.perf_counter()
            run(
                [
                    sys.executable,
                    "-m",
                    "commbench",
                    f"backend={backend}",
                    *WORDS,
                    f"output={output}",
                ],
                LIMIT_S,
            )
            seconds = time.perf_counter() - begin
            status = read_rows([output])["status"]
        measured = int((status == "ok").sum())
        detail = f"{seconds:.0f} s for {measured} of {len(status)} cases, start and end included"
        made.append(
            Claim(
                f"{backend}: seconds per case of the whole matrix",
                seconds / measured,
                CASE_S,
                detail,
            )
        )
        total_s += seconds
    return [
        *made,
        Claim(
            "minutes of the whole matrix", total_s / 60, TOTAL_MINUTES, f"{' + '.join(BACKENDS)}"
        ),
    ]
