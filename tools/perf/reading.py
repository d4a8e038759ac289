"""Section report: reading and plotting a thousand runs."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from claim import LAUNCHES, Claim, run

# the result folders of the tests
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from generated_results import run_of

RUNS = 1000
MOST_LAUNCHES = 3
SECONDS = 10.0
GIB = 1.0
CODE = """
import resource, sys
from commbench.cli.report import report as command
command(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def claims_report() -> list[Claim]:
    """Seconds and peak memory of `commbench report --html` over 10^5 cases."""
    with tempfile.TemporaryDirectory(prefix="commbench-perf-") as folder:
        for number in range(RUNS):
            run_of(Path(folder, "results"), number)
        words = [sys.executable, "-c", CODE, f"{folder}/results", "--html", f"{folder}/page.html"]
        seen = [measured(words) for _ in range(min(MOST_LAUNCHES, LAUNCHES))]
    seconds, sizes = zip(*seen, strict=True)
    what = f"of report --html, {RUNS} runs of 100 cases"
    spread = f"{min(seconds):.1f} to {max(seconds):.1f} s"
    return [
        Claim(f"seconds {what}", statistics.median(seconds), SECONDS, spread),
        Claim(f"GiB {what}", max(sizes) / 2**30, GIB, "peak resident memory"),
    ]


def measured(words: list[str]) -> tuple[float, int]:
    begin = time.perf_counter()
    size = int(run(words).stdout.split()[-1])
    return time.perf_counter() - begin, size
