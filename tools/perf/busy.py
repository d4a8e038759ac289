"""Section busy: ranks of every launcher and a loop by hand in turn, while other sessions keep all
cores busy. Linux divides the processor among sessions (autogroup in sched(7)).

As a script it is one rank of the loop by hand: rank 0 prints the median ns of half a round trip.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from by_hand import hand_gloo
from claim import LAUNCHES, Claim, run

import commbench

BOUND = 1.3
LOOPS = 4
LAUNCHERS = ("local", "torchrun", "mpirun")
# timing=default: the few visits of timing=quick may all fall into moments without a core
WORDS = ("backend=gloo", "benchmark=p2p_latency", "sizes=[8]", "writer=parquet")
BLOCKS = 100  # some seconds: a session that has just begun has more of the processor
REPETITIONS = 100  # per block


def claims_busy() -> list[Claim]:
    """Each launcher over the loop by hand: medians of the ratios within a turn."""
    seen: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    hand: list[float] = []
    with busy_loops():
        for _ in range(LAUNCHES):
            for launcher, values in seen.items():
                values.append(measured_us(launcher))
            hand.append(by_hand_us())
    made = []
    for launcher, values in seen.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(values, hand, strict=True))
        detail = f"{texts(values)} us against {texts(hand)} us"
        name = f"{launcher} / by hand beside {LOOPS} busy loops, gloo 8 B"
        made.append(Claim(name, ratio, BOUND, detail))
    return made


def texts(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


@contextmanager
def busy_loops() -> Iterator[None]:
    """Processes that never wait, in a session of their own."""
    loop = f"import os; [os.fork() for _ in range({LOOPS.bit_length() - 1})]\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop], start_new_session=True) as process:
        try:
            yield
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=True)


def measured_us(launcher: str) -> float:
    with tempfile.TemporaryDirectory(prefix="commbench-perf-") as output:
        words = [*WORDS, f"launcher={launcher}", f"output={output}"]
        run([sys.executable, "-m", "commbench", *words])
        return 1e6 * float(commbench.load(output).median_s.iloc[0])


def by_hand_us() -> float:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run([*torchrun, __file__], environment={"OMP_NUM_THREADS": "1"})
    return float(done.stdout) / 1000


def main() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    send, recv = (torch.zeros(2) for _ in range(2))
    side = hand_gloo(dist, dist.group.WORLD, send, recv, dist.get_rank())
    stamps = np.concatenate([side(REPETITIONS) for _ in range(BLOCKS)], axis=1)
    if dist.get_rank() == 0:
        print(float(np.median(np.diff(stamps[0], axis=1))) / 2)


if __name__ == "__main__":
    main()
