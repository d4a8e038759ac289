"""`make accuracy`: what gloo and Open MPI compute on this machine, and in which orders they add.
Rewrites the tables in docs/accuracy.md.

An order is proven: the same values, added in numpy in that order, have the same bits.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import rewrite
from summing_orders import OPEN_MPI, Order, gloo_ring

from commbench.core.payload import dtype
from commbench.core.units import format_number
from commbench.features.accuracy.findings import digests_of, hash_of
from commbench.features.accuracy.tables import other_bits, same_bits, share_text, sums_of
from commbench.features.accuracy.values import summands
from commbench.results.load import read_case_rows
from commbench.results.row import Row

BACKENDS = {"gloo": ("backend=gloo",), "Open MPI": ("backend=mpi", "backend.library=openmpi")}
FEW = ("timing=fixed", "timing.repetitions=2", "timing.visits=1", "payload=rounding")
ALGORITHM = "env.OMPI_MCA_coll_tuned_allreduce_algorithm"
TUNED = ("env.OMPI_MCA_coll=^han", "env.OMPI_MCA_coll_tuned_use_dynamic_rules=1")
KIND = "float32"
ELEMENTS = 256


def measured(*words: str) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="commbench-accuracy-") as folder:
        command = [sys.executable, "-m", "commbench", *FEW, *words, f"output={folder}"]
        subprocess.run(command, check=True, capture_output=True)
        return read_case_rows([folder])


def libraries() -> Iterator[str]:
    """What is found of each library, operation, number of ranks and type."""
    yield "| library | operation | ranks | type | same bits | other bits | error max, rms (ulp) |"
    yield "|---|---|---|---|---|---|---|"
    words = (
        "benchmark=[all_reduce,reduce_scatter]",
        "layout=[1x2,1x3,1x4]",
        "dtype=[float32,bfloat16]",
        "sizes=[64KiB]",
    )
    for name, library in BACKENDS.items():
        for sums in sums_of(measured(*library, *words)):
            row = sums.row
            error = f"{format_number(sums.error_ulp_max)}, {format_number(sums.error_ulp_rms)}"
            same, other = (", ".join(bits([sums])) or "-" for bits in (same_bits, other_bits))
            yield (
                f"| {name} | {row.benchmark} | {row.world_size} | {row.dtype} | {same} | {other} |"
                f" {error} |"
            )


def algorithms() -> Iterator[str]:
    """The bits of gloo and of each algorithm of Open MPI, and whether their orders in numpy have
    the same."""
    yield "| algorithm | ranks | result_hash | in numpy | in two halves |"
    yield "|---|---|---|---|---|"
    yield from _of_algorithm("gloo's ring", gloo_ring, *BACKENDS["gloo"])
    for number, (name, order) in OPEN_MPI.items():
        words = (*BACKENDS["Open MPI"], *TUNED, f"{ALGORITHM}={number}")
        yield from _of_algorithm(f"Open MPI's {number}, {name}", order, *words)


def _of_algorithm(name: str, order: Order, *words: str) -> Iterator[str]:
    asked = ("benchmark=all_reduce", "layout=[1x3,1x4,1x5]", f"sizes=[{4 * ELEMENTS}]")
    for sums in sums_of(measured(*words, *asked)):
        ranks = range(sums.row.world_size or 0)
        values = np.stack([summands(KIND, rank, 0)[:ELEMENTS] for rank in ranks])
        result = order(values, dtype(KIND))
        expected_hash = hash_of(digests_of(dict.fromkeys(ranks, result)))
        result_hash = sums.row.result_hash
        proven = "the same" if result_hash == expected_hash else "other"
        halves = share_text(sums.shares["in two halves"])
        yield f"| {name} | {len(ranks)} | {result_hash} | {proven} | {halves} |"


def main() -> int:
    for name, lines in (("libraries", libraries()), ("algorithms", algorithms())):
        text = "".join(f"{line}\n" for line in lines)
        print(text)
        rewrite("accuracy.md", name, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
