"""What is found in whole runs of a simulated world with planted orders, and in single results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commbench.cli.main import main
from commbench.features.accuracy.findings import differing, digests_of, hash_of
from commbench.results.load import read_case_rows
from commbench.results.row import Row

ELEMENTS = 1024
QUICK = ("timing=fixed", "timing.repetitions=2", "timing.visits=1", f"sizes=[{4 * ELEMENTS}]")

RIGOROUS = (
    "timing=rigorous",
    "timing.launches=2",
    "timing.visits=1",
    "timing.case_s=1",
    "timing.pass_s=0",
    "timing.repetitions=null",
    "backend.model.noise=0.1",
)


def measured(folder: Path, *words: str, status: int = 0) -> dict[str, Row]:
    """The rows of a run by operation."""
    words = ("backend=simulated", "layout=1x4", "payload=rounding", *QUICK, *words)
    assert main([*words, f"output={folder}"]) == status
    return {row.benchmark: row for row in read_case_rows([folder])}


def test_a_sum_that_is_rounded_once_is_half_a_unit_off_and_always_the_same(tmp_path: Path) -> None:
    rows = measured(tmp_path, "benchmark=[all_reduce,reduce,reduce_scatter]")
    for row in rows.values():
        assert row.error_ulp_max is not None and 0.49 < row.error_ulp_max <= 0.5
        assert row.error_ulp_rms == pytest.approx(1 / np.sqrt(12), rel=0.05)
        assert (row.other_bits_again, row.other_bits_in_place, row.other_bits_in_halves) == (
            0,
            0,
            0,
        )
        assert row.payload_seed == 1 and row.launch_hashes == (row.result_hash,)
    assert rows["all_reduce"].other_bits_on_ranks == rows["all_reduce"].other_bits_beside == 0
    assert rows["reduce"].other_bits_on_ranks is rows["reduce_scatter"].other_bits_beside is None
    assert len({row.result_hash for row in rows.values()}) == 3


@pytest.mark.parametrize(
    ("order", "differs"),
    [
        ("fixed", set()),
        ("by_rank", {"on_ranks"}),
        ("by_chunk", {"in_halves"}),
        ("by_call", {"again", "in_halves"}),
    ],
)
def test_a_planted_order_is_found_where_it_shows(
    tmp_path: Path, order: str, differs: set[str]
) -> None:
    row = measured(tmp_path, "benchmark=all_reduce", f"backend.model.order={order}")["all_reduce"]
    for kind in ("again", "on_ranks", "in_place", "in_halves", "beside"):
        share = getattr(row, f"other_bits_{kind}")
        assert share > 0.1 if kind in differs else share == 0, kind
    assert row.error_ulp_max is not None and row.error_ulp_max > 0.5


@pytest.mark.parametrize(("after", "kind"), [(0, "on_ranks"), (1, "again")])
def test_a_flipped_last_place_is_found_by_its_bits_and_not_by_the_bound(
    tmp_path: Path, after: int, kind: str
) -> None:
    planted = ("corrupt_rank=2", "corrupt_bit=0", f"corrupt_after={after}")
    words = [f"backend.model.{word}" for word in planted]
    row = measured(tmp_path, "benchmark=all_reduce", *words)["all_reduce"]
    assert (row.status, row.wrong_elements) == ("ok", 0)
    assert getattr(row, f"other_bits_{kind}") == 1 / (4 * ELEMENTS)
    assert kind == "again" or row.other_bits_again == 0  # in each call


def test_a_flipped_exponent_is_found_by_the_bound(tmp_path: Path) -> None:
    words = [f"backend.model.{word}" for word in ("corrupt_rank=2", "corrupt_bit=29")]
    row = measured(tmp_path, "benchmark=all_reduce", *words, status=1)["all_reduce"]
    assert (row.status, row.wrong_elements) == ("invalid", 1)
    assert row.error_ulp_max is None


def test_each_launch_of_a_run_has_its_hash(tmp_path: Path) -> None:
    row = measured(tmp_path, "benchmark=all_reduce", *RIGOROUS)["all_reduce"]
    assert row.launch_hashes == (row.result_hash, row.result_hash)


def test_a_case_with_usual_values_has_none_of_these_columns(tmp_path: Path) -> None:
    row = measured(tmp_path, "benchmark=all_reduce", "payload=integers")["all_reduce"]
    assert row.payload is row.error_ulp_max is row.result_hash is row.launch_hashes is None


def test_bits_are_compared_and_not_values() -> None:
    """Two NaN are the same, 0 and -0 are not."""
    first = {0: np.array([np.nan, 0.0, np.inf, 1.0], dtype=np.float32)}
    second = {0: np.array([np.nan, -0.0, np.inf, 1.0], dtype=np.float32)}
    assert differing(first, [first]) == (0, 4)
    assert differing(first, [second]) == (1, 4)
    assert differing(first, [first, second]) == (1, 4)
    assert differing(first, []) == (0, 0)


def test_an_element_more_is_not_compared() -> None:
    first = {3: np.arange(5, dtype=np.uint16)}
    assert differing(first, [{3: np.arange(4, dtype=np.uint16)}]) == (0, 4)


def test_a_hash_is_of_the_results_of_all_ranks_whichever_process_has_them() -> None:
    results = {rank: np.full(4, rank, dtype=np.float32) for rank in range(3)}
    digests = digests_of(results)
    assert hash_of(digests) == hash_of(digests[::-1])
    assert hash_of(digests) != hash_of(digests_of({**results, 2: results[1]}))
