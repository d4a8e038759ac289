"""Sections openmpi, mpich, gloo and replay: the engines against C and against loops written by
hand."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from claim import LAUNCHES, MIB, Claim, run

from commbench.core.layout import Layout
from commbench.hardware.mpi_library import MpiLibrary, find
from commbench.runtime.launchers.mpirun import Mpirun

HERE = Path(__file__).parent
Blocks = dict[str, dict[str, list[float]]]  # case, side: ns per operation in each block
Wanted = tuple[str, str, str, float]  # case, over, under, bound
C_CASES = (
    *(f"p2p_latency {size}" for size in (8, 1024, 65536)),
    *(f"p2p_bandwidth {size}" for size in (65536, 4 * MIB)),
    *(f"all_reduce {size}" for size in (8, 1024, MIB)),
)
C_BOUND = 1.05
REPLAYED = ("replay of all_reduces 8", "replay of messages 8")


def claims_mpi(kind: str) -> list[Claim]:
    launch = mpi_launch(kind)
    launches = [launch() for _ in range(LAUNCHES)]
    # 0.4 unless C itself is slower: the native loop cannot be faster than the library
    own = ratio(launches, "p2p_latency 8", "c", "by_hand")
    wanted: list[Wanted] = [
        ("p2p_latency 8", "native", "by_hand", max(0.4, C_BOUND * own[0]) if own else 0.4)
    ]
    wanted += [(case, "native", "c", C_BOUND) for case in C_CASES]
    # one buffer for all messages of a window, as osu_bw has it: 0.95 to 1.05
    for size in (8192, MIB):
        case = f"p2p_bandwidth buffers=shared {size}"
        wanted += [(case, "native", "c", C_BOUND), (case, "c", "native", 1 / 0.95)]
    wanted += [("p2p_latency 8", "python", "by_hand", 1.05)]
    wanted += [(f"p2p_latency {size}", "python", "by_hand", 1.02) for size in (65536, 4 * MIB)]
    return claims(kind, launches, wanted)


def claims_gloo() -> list[Claim]:
    launches = [gloo_launch() for _ in range(LAUNCHES)]
    sizes = (8, 65536, 4 * MIB)
    return claims(
        "gloo", launches, [(f"p2p_latency {size}", "python", "by_hand", 1.02) for size in sizes]
    )


def claims_replay() -> list[Claim]:
    """A replayed job of calls of 8 B against the same calls by hand, with the engine that a run
    takes by itself."""
    wanted: list[Wanted] = [(case, "python", "by_hand", 1.02) for case in REPLAYED]
    made = claims("gloo", [gloo_launch("replay") for _ in range(LAUNCHES)], wanted)
    launch = mpi_launch("openmpi", "replay")
    native: list[Wanted] = [(case, "native", "by_hand", 1.02) for case in REPLAYED]
    return made + claims("openmpi", [launch() for _ in range(LAUNCHES)], native)


def claims(where: str, launches: list[Blocks], wanted: list[Wanted]) -> list[Claim]:
    made = []
    for case, over, under, bound in wanted:
        seen = ratio(launches, case, over, under)
        if seen is not None:
            made.append(Claim(f"{where}: {over} / {under}, {case} B", seen[0], bound, seen[1]))
    return made


def ratio(launches: list[Blocks], case: str, over: str, under: str) -> tuple[float, str] | None:
    """Median over launches of the median of the ratios block by block, and a text; None if a side
    is missing."""
    if under not in launches[0][case]:
        return None
    ratios = []
    absolute = []
    for launch in launches:
        a = launch[case][over]
        b = launch[case][under]
        ratios.append(statistics.median(x / y for x, y in zip(a, b, strict=True)))
        absolute.append((statistics.median(a) / 1000, statistics.median(b) / 1000))
    mine, theirs = (statistics.median(times) for times in zip(*absolute, strict=True))
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    return (
        statistics.median(ratios),
        f"{mine:.3f} us against {theirs:.3f} us per operation; launches {spread}",
    )


def mpi_launch(kind: str, *section: str) -> Callable[[], Blocks]:
    library = find(kind)
    assert library is not None, f"{kind} is not installed; make perf installs both wheels"
    launcher = Mpirun()
    folder = tempfile.mkdtemp(prefix="commbench-perf-")
    command = launcher.command(Layout(1, 2), (), library.path, ())
    start = command[: command.index(sys.executable)]
    reference = None if section else compiled(library, folder)
    environment = {**launcher.environment(2), "MPI4PY_LIBMPI": library.path}

    def launch() -> Blocks:
        words = [
            *start,
            sys.executable,
            str(HERE / "ranks.py"),
            "mpi",
            *section,
            *([reference] if reference else []),
        ]
        return blocks_of(run(words, environment=environment).stdout)

    return launch


def compiled(library: MpiLibrary, folder: str) -> str | None:
    """The path of the C reference as a shared object; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = f"{folder}/reference.so"
    run(
        [compiler, "-O2", "-shared", "-fPIC", str(HERE / "reference.c"), "-o", target, library.path]
    )
    return target


def gloo_launch(*section: str) -> Blocks:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return blocks_of(
        run(
            [*torchrun, str(HERE / "ranks.py"), "gloo", *section],
            environment={"OMP_NUM_THREADS": "1"},
        ).stdout
    )


def blocks_of(stdout: str) -> Blocks:
    line = next(line for line in stdout.splitlines() if line.startswith("{"))
    blocks: Blocks = json.loads(line)
    return blocks
