"""Soaks: the rate in each interval from a planted world, and when it was first at full speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import commbench
from commbench.report.cold_start import SOAK_INTERVAL, full_speed, soak_intervals


def line(rates: list[float], run: str = "r") -> pd.DataFrame:
    frame = pd.DataFrame({"at_s": np.arange(len(rates)) * 0.1, "rate_gb_per_s": rates})
    told = dict.fromkeys((name for name in SOAK_INTERVAL if name not in frame), "x")
    return frame.assign(**{**told, "run_id": run})


@pytest.mark.parametrize(
    ("rates", "begun", "least"),
    [
        ([1.0] * 20, 0.0, 1.0),
        ([0.3] * 4 + [0.6, 0.7, 0.7] + [1.0] * 20, 0.7, 1.0),
        ([0.94] + [1.0] * 20, 0.1, 1.0),
        ([0.95] + [1.0] * 20, 0.0, 0.95),
        ([1.0] * 10 + [0.2] + [1.0] * 10, 0.0, 0.2),
    ],
)
def test_full_speed_is_95_percent_of_the_median(rates: list[float], begun: float, least: float) -> None:
    (row,) = full_speed(line(rates)).to_dict("records")
    assert row["steady_gb_per_s"] == 1.0
    assert row["full_speed_s"] == pytest.approx(begun)
    assert row["least_gb_per_s"] == least


def test_each_soak_has_its_own_row() -> None:
    both = pd.concat([line([1.0, 1.0], "a"), line([0.5, 2.0, 2.0], "b")])
    assert full_speed(both).set_index("run_id").full_speed_s.to_dict() == {"a": 0.0, "b": pytest.approx(0.1)}


def test_the_time_line_of_a_world_without_noise_is_flat(tmp_path: Path) -> None:
    folder = commbench.run(
        "backend=simulated", "benchmark=[p2p_bandwidth]", "sizes=[1MiB]", "timing=soak", "timing.duration_s=1",
        "writer=[parquet]", f"output={tmp_path}",
    )  # fmt: skip
    found = soak_intervals(folder)
    assert tuple(found.columns) == SOAK_INTERVAL
    assert found.at_s.iloc[0] == 0 and found.at_s.is_monotonic_increasing and len(found) >= 8
    (case,) = commbench.load(folder).to_dict("records")
    assert found.rate_gb_per_s.to_numpy() == pytest.approx(case["algbw_gb_per_s"], rel=0.02)


def test_other_runs_have_no_line(tmp_path: Path) -> None:
    folder = commbench.run("backend=simulated", "sizes=[8]", "timing=quick", "writer=[parquet]", f"output={tmp_path}")
    assert len(soak_intervals(folder)) == 0
