"""`python tools/perf/side_by_side.py [--openmpi DIR] [--mpich DIR]`: OSU, iperf3 and commbench on
this machine in turn; rewrites the tables of docs/side_by_side.md.

DIR is the folder of the OSU Micro-Benchmarks, built for that library.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from claim import run
from wire import launches_over, named, need_iperf3
from wire_ranks import STREAMS

import commbench
from commbench.core.layout import Layout
from commbench.hardware.mpi_library import MpiLibrary, find
from commbench.runtime.launchers.mpirun import Mpirun

# the virtual hosts of the tests
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import rewrite
from virtual_hosts import Link, missing

LAUNCHES = 6  # the smallest and the largest of 6 ratios are an interval of 96.9 % for their median
SIZES = (8, 1024, 65536, 1048576)
LINK = Link(rate_mbit=1000)
LINK_WINDOW = 16
LINK_MESSAGE_BYTES = 2**20

# size in bytes -> seconds of one operation
Times = Mapping[int, float]


@dataclass(frozen=True)
class Operation:
    """The same operation of both tools. `osu_per_s`: OSU prints MB/s instead of microseconds."""

    osu: str
    osu_words: tuple[str, ...]
    words: tuple[str, ...]
    osu_per_s: bool = False


OPERATIONS = (
    Operation("osu_latency", (), ("benchmark=p2p_latency", "dtype=int8")),
    Operation(
        "osu_bw",
        ("-W", "64"),
        ("benchmark=p2p_bandwidth", "dtype=int8", "window=64", "buffers=shared"),
        osu_per_s=True,
    ),
    Operation("osu_allreduce", (), ("benchmark=all_reduce", "in_place=false")),
)


def osu_times(library: MpiLibrary, folder: Path, operation: Operation) -> Times:
    """OSU's means, in seconds per message (osu_bw), half round trip or operation."""
    program = next(path for path in folder.rglob(operation.osu) if path.is_file())
    worker = [str(program), *operation.osu_words, "-m", f"{SIZES[0]}:{SIZES[-1]}"]
    command = Mpirun().command(Layout(1, 2), (), library.path, ())
    start = command[: command.index(sys.executable)]
    printed = run([*start, *worker], environment=Mpirun().environment(2)).stdout
    rows = [line.split() for line in printed.splitlines() if line[:1].isdigit()]
    numbers = {int(row[0]): float(row[1]) for row in rows}
    if operation.osu_per_s:
        return {size: size / (numbers[size] * 1e6) for size in SIZES}
    return {size: numbers[size] * 1e-6 for size in SIZES}


def commbench_times(library: MpiLibrary, operation: Operation) -> Times:
    """commbench's means of the same operations, in a fresh world."""
    sizes = f"sizes=[{','.join(map(str, SIZES))}]"
    timing = ("timing=quick", "timing.case_s=0.6", "cache=warm")
    with tempfile.TemporaryDirectory(prefix="commbench-side-by-side-") as output:
        run(
            [
                sys.executable, "-m", "commbench", "backend=mpi",
                f"backend.library={library.path}", "layout=1x2", sizes, *timing,
                *operation.words, "writer=[parquet]", f"output={output}",
            ]
        )  # fmt: skip
        frame = commbench.load(output)
    means = dict(zip(frame["message_bytes"], frame["mean_s"], strict=True))
    return {size: float(means[size]) for size in SIZES}


def in_turn(*sides: Callable[[], Times]) -> list[tuple[Times, ...]]:
    """Each side once per launch, in opposite orders in even and odd launches."""
    launches = []
    for number in range(LAUNCHES):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        measured = {index: sides[index]() for index in order}
        launches.append(tuple(measured[index] for index in range(len(sides))))
    return launches


def osu_table(kind: str, folder: Path | None) -> list[str]:
    library = find(kind)
    if folder is None or library is None:
        lack = "OSU's folder was not named" if folder is None else f"{kind} is not installed"
        return [f"Not measured: {lack}."]
    lines = [
        f"2 ranks on one machine, {LAUNCHES} launches:",
        "",
        "| | message | OSU | commbench | commbench / OSU | interval |",
        "|---|---|---|---|---|---|",
    ]
    for operation in OPERATIONS:
        launches = in_turn(
            partial(osu_times, library, folder, operation),
            partial(commbench_times, library, operation),
        )
        for size in SIZES:
            theirs = [osu[size] for osu, _ in launches]
            ours = [own[size] for _, own in launches]
            ratios = [own / osu for osu, own in zip(theirs, ours, strict=True)]
            lines.append(
                f"| {operation.osu} | {size} B | {statistics.median(theirs) * 1e6:.3g} us"
                f" | {statistics.median(ours) * 1e6:.3g} us | {statistics.median(ratios):.2f}"
                f" | {min(ratios):.2f} .. {max(ratios):.2f} |"
            )
            print(lines[-1], flush=True)
    return lines


def link_table() -> list[str]:
    need_iperf3()
    lack = missing(LINK)
    if lack is not None:
        return [f"Not measured: {lack}."]
    launches = launches_over(LINK, LINK_MESSAGE_BYTES, LINK_WINDOW)
    lines = [
        f"Two virtual hosts, a link of {LINK.rate_mbit} Mbit/s, {len(launches)} launches:",
        "",
        "| | iperf3 | commbench, tcp | commbench / iperf3 | smallest and largest |",
        "|---|---|---|---|---|",
    ]
    for streams in STREAMS:
        pairs = [
            tuple(statistics.median(launch[str(streams)][side]) for side in ("iperf3", "ours"))
            for launch in launches
        ]
        theirs = statistics.median(pair[0] for pair in pairs) / 1e9
        ours = statistics.median(pair[1] for pair in pairs) / 1e9
        ratios = [own / other for other, own in pairs]
        lines.append(
            f"| {named(streams)} | {theirs:.4f} GB/s | {ours:.4f} GB/s"
            f" | {statistics.median(ratios):.3f} | {min(ratios):.3f} .. {max(ratios):.3f} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", help="openmpi, mpich, link; all of them by default")
    for kind in ("openmpi", "mpich"):
        parser.add_argument(f"--{kind}", type=Path, help=f"OSU built for {kind}")
    given = parser.parse_args()
    tables: dict[str, Callable[[], list[str]]] = {
        "openmpi": lambda: osu_table("openmpi", given.openmpi),
        "mpich": lambda: osu_table("mpich", given.mpich),
        "link": link_table,
    }
    for name in given.tables or tables:
        when = f"Measured on {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores."
        rewrite("side_by_side.md", name, "\n".join([when, "", *tables[name](), ""]))


if __name__ == "__main__":
    main()
