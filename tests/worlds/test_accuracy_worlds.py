"""payload=rounding in real worlds: what gloo computes, and in which orders Open MPI adds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from summing_orders import OPEN_MPI, Order, gloo_ring

from commbench.cli.main import main
from commbench.core.payload import dtype
from commbench.features.accuracy.findings import digests_of, hash_of
from commbench.features.accuracy.values import summands
from commbench.results.load import read_case_rows
from commbench.results.row import Row

ELEMENTS = 256
QUICK = ("timing=fixed", "timing.repetitions=2", "timing.visits=1", "benchmark=all_reduce")


def measured(folder: Path, *words: str) -> list[Row]:
    assert main([*QUICK, "payload=rounding", *words, f"output={folder}"]) == 0
    return read_case_rows([folder])


def hash_in_order(order: Order, ranks: int) -> str:
    """Of the same values, added in numpy."""
    values = np.stack([summands("float32", rank, 0)[:ELEMENTS] for rank in range(ranks)])
    words = order(values, dtype("float32"))
    return hash_of(digests_of(dict.fromkeys(range(ranks), words)))


def test_gloo_with_two_ranks_rounds_once_and_always_alike(tmp_path: Path) -> None:
    for row in measured(
        tmp_path, "backend=gloo", "layout=1x2", "dtype=[float32,bfloat16]", "sizes=[64KiB]"
    ):
        assert row.error_ulp_max == 0.5
        assert (row.other_bits_again, row.other_bits_on_ranks, row.other_bits_in_halves) == (
            0,
            0,
            0,
        )


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.long)])
def test_gloo_adds_in_a_ring(tmp_path: Path, ranks: int) -> None:
    (row,) = measured(tmp_path, "backend=gloo", f"layout=1x{ranks}", f"sizes=[{4 * ELEMENTS}]")
    assert row.result_hash == hash_in_order(gloo_ring, ranks)


def test_gloo_with_four_ranks_adds_halves_in_another_order(tmp_path: Path) -> None:
    (row,) = measured(tmp_path, "backend=gloo", "layout=1x4", "dtype=float32", "sizes=[64KiB]")
    assert (row.other_bits_again, row.other_bits_on_ranks, row.other_bits_beside) == (0, 0, 0)
    assert row.other_bits_in_halves is not None and 0.15 < row.other_bits_in_halves < 0.35
    assert row.other_bits_in_place is None  # gloo reduces in place only


@pytest.mark.parametrize(
    ("ranks", "algorithm"), [(3, 4), pytest.param(4, 3, marks=pytest.mark.long)]
)
def test_an_algorithm_of_open_mpi_adds_in_its_order(
    tmp_path: Path, ranks: int, algorithm: int
) -> None:
    """All six with 3, 4 and 5 ranks: `make accuracy`."""
    (row,) = measured(
        tmp_path,
        "backend=mpi",
        "backend.library=openmpi",
        f"layout=1x{ranks}",
        f"sizes=[{4 * ELEMENTS}]",
        "env.OMPI_MCA_coll=^han",
        "env.OMPI_MCA_coll_tuned_use_dynamic_rules=1",
        f"env.OMPI_MCA_coll_tuned_allreduce_algorithm={algorithm}",
    )
    _, order = OPEN_MPI[algorithm]
    assert row.result_hash == hash_in_order(order, ranks)
