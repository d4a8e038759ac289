"""What is stored of soaks: the intervals of time lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_results import run_of

import commbench
from commbench.features.streams.stored import SOAK_INTERVAL, soak_intervals


def test_the_time_line_of_a_world_without_noise_is_flat(tmp_path: Path) -> None:
    folder = commbench.run(
        "backend=simulated",
        "benchmark=[p2p_bandwidth]",
        "sizes=[1MiB]",
        "timing=soak",
        "timing.duration_s=0.05",
        "timing.interval_s=0.01",
        "writer=[parquet]",
        f"output={tmp_path}",
    )
    intervals = soak_intervals(folder)
    assert tuple(intervals.columns) == SOAK_INTERVAL
    assert (
        intervals.at_s.iloc[0] == 0
        and intervals.at_s.is_monotonic_increasing
        and len(intervals) >= 2
    )
    (case,) = commbench.load(folder).to_dict("records")
    assert intervals.rate_gb_per_s.to_numpy() == pytest.approx(case["algbw_gb_per_s"], rel=0.02)


def test_other_runs_have_no_line(tmp_path: Path) -> None:
    assert len(soak_intervals(run_of(tmp_path, 0))) == 0
