"""Two directions of a pair: noise is no difference, a planted one is named with its factor."""

from __future__ import annotations

from typing import Any

from sample_cases import case_row

from commbench.analysis.pairs.matrix import Matrix, matrices
from commbench.analysis.pairs.symmetry import directions, symmetry_text


def matrix(times: dict[str, float], width: float = 0.001, **more: Any) -> Matrix:
    rows = [
        case_row(
            run_id="r",
            benchmark="p2p_bandwidth",
            message_bytes=1024,
            status="ok",
            ranks_per_node=1,
            pair=pair,
            median_s=time,
            ci_low_s=time * (1 - width),
            ci_high_s=time * (1 + width),
            algbw_gb_per_s=1e-9 * 1024 / time,
            **more,
        )
        for pair, time in times.items()
    ]
    (found,) = matrices(rows)
    return found


ALIKE = {"0-1": 1e-6, "1-0": 1.004e-6, "0-2": 1e-6, "2-0": 1e-6, "0-0": 5e-6}


def test_pairs_that_differ_by_less_than_a_percent_are_symmetric() -> None:
    assert symmetry_text(matrix(ALIKE)) == "2 of 2 pairs symmetric within 1 %"


def test_a_slow_direction_is_named_with_both_numbers_and_their_factor() -> None:
    slow = matrix({**ALIKE, "2-0": 2.5e-6})
    text = symmetry_text(slow)
    assert text.startswith("1 of 2 pairs not symmetric: 2-0 2.50 us, 0-2 1.00 us (2.5 x)")
    assert text.endswith("; 1 of 2 pairs symmetric within 1 %")
    assert directions(slow)[0].slower == (2, 0)
    rates = symmetry_text(matrix({**ALIKE, "2-0": 2.5e-6}, window=64))
    assert "2-0 0.410 GB/s, 0-2 1.02 GB/s (2.5 x)" in rates


def test_a_difference_within_the_intervals_is_undecided_however_large() -> None:
    assert symmetry_text(matrix({**ALIKE, "2-0": 3.9e-6}, width=0.8)) == (
        "1 of 2 pairs symmetric within 1 %; 1 of 2 pairs undecided (differences up to 290 %)"
    )
    assert symmetry_text(matrix({**ALIKE, "2-0": 3.9e-6}, width=0.2)).startswith("1 of 2 pairs not")


def test_one_direction_says_nothing() -> None:
    assert symmetry_text(matrix({"0-1": 1e-6, "0-0": 1e-6})) == ""
