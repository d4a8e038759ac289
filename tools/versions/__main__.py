"""`make versions`: releases of gloo, Open MPI and MPICH, each against the next; rewrites
docs/versions.md.

`python tools/versions NAME ...` measures some of the libraries; the others stay. `--benchmark` and
`--launches` are for a first look.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from environments import LIBRARIES, Library, environment, newest_releases, releases
from pages import rewrite
from verdicts import chapter, nothing_to_compare, slower

from commbench.analysis.compared_case import ComparedCase
from commbench.features.ab.ab_results import read_ab_results

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
OTHERS = (
    "p2p_latency",
    "p2p_bandwidth",
    "p2p_bibandwidth",
    "exchange",
    "broadcast",
    "gather",
    "scatter",
    "all_gather",
    "all_to_all",
)
SIZES = (8, 2**16, 2**22)
TIMING = ("layout=1x2", "dtype=float32", "timing=quick", "timing.case_s=0.5")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/versions")
    names = [library.name for library in LIBRARIES]
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME")
    parser.add_argument("--benchmark", type=lambda text: text.split(","))
    parser.add_argument("--launches", type=int)
    options = parser.parse_args(words)
    for library in LIBRARIES:
        if not options.names or library.name in options.names:
            with tempfile.TemporaryDirectory(prefix="commbench-versions-") as folder:
                text = "\n".join(written(library, Path(folder), options))
            print(text)
            rewrite("versions.md", library.name, f"\n{text}\n")


def written(library: Library, folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """The chapters of a library, measured now: of each pair of releases that follow each other."""
    known = releases(library)
    chosen = newest_releases(known, library)
    if len(chosen) < 2:
        yield nothing_to_compare(library.name, library.package, known)
        return
    pythons = {version: environment(folder, library.package, version) for version in chosen}
    asked = options.benchmark or (*REDUCING, *OTHERS)
    for before, after in pairwise(chosen):
        sides = (pythons[before], pythons[after])
        cases = [
            case
            for own in (REDUCING, OTHERS)
            if (names := [name for name in own if name in asked])
            for case in compared(library, sides, names, SIZES, options.launches)
        ]
        again = confirmed(library, sides, slower(cases), options.launches)
        yield chapter(f"{library.name} {before} and {after}", cases, again)


def confirmed(
    library: Library, sides: tuple[Path, Path], cases: Sequence[ComparedCase], launches: int | None
) -> list[ComparedCase]:
    """The same cases in fresh launches."""
    by_name = dict[str, list[int]]()
    for case in cases:
        sizes = by_name.setdefault(case.variables.benchmark, [])
        sizes.append(int(case.variables.message_bytes or 0))
    return [
        case
        for name, sizes in by_name.items()
        for case in compared(library, sides, [name], sizes, launches)
    ]


def compared(
    library: Library,
    sides: tuple[Path, Path],
    names: Sequence[str],
    sizes: Sequence[int],
    launches: int | None,
) -> tuple[ComparedCase, ...]:
    """By `commbench ab`, in launches in turn; also where a release loses its ranks in a case."""
    with tempfile.TemporaryDirectory(prefix="commbench-versions-") as folder:
        words = [
            *(f"python={sides[0]}", *library.words, *TIMING),
            f"benchmark=[{','.join(names)}]",
            f"sizes=[{','.join(map(str, sizes))}]",
            *(["payload=rounding"] if names[0] in REDUCING else []),
            f"output={folder}",
            *("--vs", f"python={sides[1]}"),
            *(["--launches", str(launches)] if launches is not None else []),
        ]
        status = subprocess.run([sys.executable, "-m", "commbench", "ab", *words]).returncode
        results, problems = read_ab_results([folder])
        if not results:
            raise SystemExit(
                "\n".join([f"ab: exit status {status}, nothing to compare", *problems])
            )
        return results[0].cases


if __name__ == "__main__":
    main(sys.argv[1:])
