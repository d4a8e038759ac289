"""The table of a report: a piece is a line, and a bad one is none."""

from __future__ import annotations

import pytest
from sample_cases import case_row

from commbench.analysis.combined import combine_runs
from commbench.features.hockney.reporting import fits
from commbench.results.row import Row

MIB = 2**20
LINE = {size: 1e-3 + size * 1e-9 for size in (MIB, 2 * MIB, 4 * MIB, 8 * MIB)}


def cases(times_s: dict[int, float]) -> list[Row]:
    known = {"benchmark": "all_reduce", "status": "ok", "world_size": 2, "backend": "gloo"}
    return [
        case_row(**known, case_id=str(size), message_bytes=size, median_s=seconds)
        for size, seconds in times_s.items()
    ]


def test_a_line_is_told_by_its_two_costs() -> None:
    (cells,) = fits(combine_runs(cases(LINE)))
    assert cells[0] == "all_reduce"
    assert cells[2:6] == ("1 MiB .. 8 MiB", "1.00 ms", "1 GB/s", "977 KiB")


@pytest.mark.parametrize(("factor", "lines"), [(1.1, 1), (2.5, 0)])
def test_a_piece_that_misses_a_size_by_more_than_a_quarter_is_left_out(
    factor: float, lines: int
) -> None:
    rows = cases(LINE | {2 * MIB: factor * LINE[2 * MIB]})
    assert len(fits(combine_runs(rows))) == lines


def test_two_sizes_are_no_line() -> None:
    assert fits(combine_runs(cases({MIB: LINE[MIB], 2 * MIB: LINE[2 * MIB]}))) == []
