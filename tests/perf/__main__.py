"""`make perf`: the tool's own speed as ratios; each launch alternates all sides in the same ranks."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commbench.launchers.mpirun import Mpirun
from commbench.mpi_library import MpiLibrary, find

HERE = Path(__file__).parent
LAUNCHES = 5
MIB = 2**20
Blocks = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Claim:
    """One line of the table: a ratio of two sides, or a number with its bound."""

    name: str
    value: float
    bound: float
    detail: str

    @property
    def holds(self) -> bool:
        return self.value <= self.bound


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["timeout", "-k", "5", "300", *command],
        capture_output=True, text=True, check=True, env={**os.environ, **environment},
    )  # fmt: skip


def compiled(library: MpiLibrary, folder: str) -> str | None:
    """The C reference as a shared object; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = f"{folder}/reference.so"
    run([compiler, "-O2", "-shared", "-fPIC", str(HERE / "reference.c"), "-o", target, library.path])
    return target


def mpi_launch(kind: str) -> Callable[[], Blocks]:
    library = find(kind)
    assert library is not None, f"{kind} is not installed; make perf installs both wheels"
    launcher, folder = Mpirun(), tempfile.mkdtemp(prefix="commbench-perf-")
    command = launcher.command(2, (), library.path)
    start = command[: command.index(sys.executable)]
    reference = compiled(library, folder)
    environment = {**launcher.environment(2, library.path), "MPI4PY_LIBMPI": library.path}

    def launch() -> Blocks:
        words = [*start, sys.executable, str(HERE / "ranks.py"), "mpi", *([reference] if reference else [])]
        return blocks_of(run(words, **environment).stdout)

    return launch


def gloo_launch() -> Blocks:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return blocks_of(run([*torchrun, str(HERE / "ranks.py"), "gloo"], OMP_NUM_THREADS="1").stdout)


def blocks_of(stdout: str) -> Blocks:
    line = next(line for line in stdout.splitlines() if line.startswith("{"))
    blocks: Blocks = json.loads(line)
    return blocks


def ratio(launches: list[Blocks], size: int, over: str, under: str) -> tuple[float, str] | None:
    """Median over launches of the median of the blocks' ratios, block by block."""
    if under not in launches[0][str(size)]:
        return None
    ratios, absolute = [], []
    for launch in launches:
        a, b = launch[str(size)][over], launch[str(size)][under]
        ratios.append(statistics.median(x / y for x, y in zip(a, b, strict=True)))
        absolute.append((statistics.median(a) / 2000, statistics.median(b) / 2000))
    mine, theirs = (statistics.median(one) for one in zip(*absolute, strict=True))
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    return statistics.median(ratios), f"{mine:.3f} us against {theirs:.3f} us half a round trip; launches {spread}"


def claims_mpi(kind: str) -> list[Claim]:
    launch = mpi_launch(kind)
    launches = [launch() for _ in range(LAUNCHES)]
    # 0.4 where C itself is that fast: the native loop can't beat the library
    own = ratio(launches, 8, "c", "by_hand")
    wanted = [(8, "native", "by_hand", max(0.4, 1.05 * own[0]) if own else 0.4)]
    wanted += [(size, "native", "c", 1.10) for size in (8, 1024, 65536)]
    wanted += [(8, "python", "by_hand", 1.05)] + [(size, "python", "by_hand", 1.02) for size in (65536, 4 * MIB)]
    return claims(kind, launches, wanted)


def claims_gloo() -> list[Claim]:
    launches = [gloo_launch() for _ in range(LAUNCHES)]
    return claims("gloo", launches, [(size, "python", "by_hand", 1.02) for size in (8, 65536, 4 * MIB)])


def claims(where: str, launches: list[Blocks], wanted: list[tuple[int, str, str, float]]) -> list[Claim]:
    made = []
    for size, over, under, bound in wanted:
        seen = ratio(launches, size, over, under)
        if seen is not None:
            made.append(Claim(f"{where}: {over} / {under} at {size} B", seen[0], bound, seen[1]))
    return made


def claims_door() -> list[Claim]:
    """Seconds of commands that must not import torch; the best of five, since they compete with nothing."""
    commands = {"--help": ["--help"], "doctor": ["doctor"], "a configuration error": ["backend=none"]}
    made = []
    for name, words in commands.items():
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-m", "commbench", *words], capture_output=True, check=False)
            seconds.append(time.perf_counter() - begin)
        made.append(Claim(f"seconds of {name}", min(seconds), 1.0, f"median {statistics.median(seconds):.2f} s"))
    return made


def claims_memory() -> list[Claim]:
    """Peak resident memory of a rank beyond its imports at 256 MiB messages, over buffers x 1.2 + 64 MiB."""
    made = []
    for backend in ("gloo", "mpi"):
        for benchmark in ("p2p_latency", "p2p_bandwidth", "all_reduce"):
            words = [sys.executable, str(HERE / "memory.py"), backend, benchmark]
            peak, buffers = (int(word) for word in run(words).stdout.split()[-2:])
            share = peak / (1.2 * buffers + 64 * MIB)
            detail = f"{peak / MIB:.0f} MiB over the imports, buffers {buffers / MIB:.0f} MiB"
            made.append(Claim(f"{backend}: peak memory of {benchmark} / allowed", share, 1.0, detail))
    return made


def main() -> int:
    table: list[Claim] = []
    for part in (claims_door, lambda: claims_mpi("openmpi"), lambda: claims_mpi("mpich"), claims_gloo, claims_memory):
        for claim in part():
            verdict = "ok  " if claim.holds else "MISS"
            print(
                f"{verdict} {claim.name:<52} {claim.value:7.3f}  bound {claim.bound:5.2f}   {claim.detail}", flush=True
            )
            table.append(claim)
    target = Path("perf") / f"{time.strftime('%Y%m%dT%H%M%S')}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([{**vars(claim), "holds": claim.holds} for claim in table], indent=1))
    print(f"stored in {target}")
    return 0 if all(claim.holds for claim in table) else 1


if __name__ == "__main__":
    sys.exit(main())
