"""The price of a launch: cases that differ in their clock alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from generated_results import row
from hypothesis import given
from hypothesis import strategies as st

from commbench.report.cold_start import launch_overheads

WAY = ("nccl", "python", 20e-6, 100e9)


def case(mode: str, median_s: float, size: int = 1024, run: str = "r", **more: Any) -> dict[str, Any]:
    made = row(run, "all_reduce", WAY, "1x8", size, np.random.default_rng(0))
    return made | {"timing_mode": mode, "median_s": median_s, "device": "cuda"} | more


@given(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2))
def test_the_difference_is_that_of_the_medians(waited: float, replayed: float) -> None:
    (one,) = launch_overheads(pd.DataFrame([case("host_sync", waited), case("graph", replayed)]))
    assert (one.host_sync_s, one.graph_s, one.overhead_s) == (waited, replayed, pytest.approx(waited - replayed))
    assert one.cells()[0] == "all_reduce" and one.cells()[1] == "nccl 1x8 float32"


def test_several_launches_are_put_together_by_their_medians() -> None:
    rows = [case("host_sync", value, run=f"r{value}") for value in (30e-6, 50e-6, 40e-6)]
    (one,) = launch_overheads(pd.DataFrame([*rows, case("graph", 10e-6)]))
    assert one.overhead_s == pytest.approx(30e-6)


@pytest.mark.parametrize(
    "other",
    [{"message_bytes": 8}, {"dtype": "int8"}, {"layout": "2x4"}, {"env": {"NCCL_ALGO": "Ring"}}, {"status": "failed"},
     {"timing_mode": "throughput"}, {"backend": "cupy_nccl"}],
    ids=str,
)  # fmt: skip
def test_cases_that_differ_in_more_are_not_subtracted(other: dict[str, Any]) -> None:
    assert launch_overheads(pd.DataFrame([case("host_sync", 2e-6), case("graph", 1e-6, **other)])) == []


def test_pairs_are_told_apart_and_null_variables_are_alike() -> None:
    modes = {"host_sync": 2e-6, "graph": 1e-6}
    rows = [case(mode, median_s, pair=pair) for mode, median_s in modes.items() for pair in ("0-1", "0-2")]
    assert [one.pair for one in launch_overheads(pd.DataFrame(rows))] == ["0-1", "0-2"]
