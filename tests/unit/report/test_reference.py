"""Published values: well formed, matched by hardware and place, far only when far."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import row, run_of

from commbench.cli.run import abnormal
from commbench.core.columns import CASES, arrow_schema
from commbench.report.reference import FAST, NORMAL, SLOW, judge, references

COLUMNS = {column.name: column for column in CASES}


def cases(**more: object) -> pd.DataFrame:
    row = {
        "benchmark": "p2p_bandwidth", "backend": "tcp", "engine": "python", "layout": "2x1", "pair": "0-1",
        "message_bytes": 2**22, "world_size": 2, "ranks_per_node": 1, "algbw_gb_per_s": 1.18, "busbw_gb_per_s": None,
        "median_s": 3.5e-3,
    }  # fmt: skip
    return pd.DataFrame([row | more])


def test_every_value_has_a_source_a_date_and_a_range_in_a_known_column() -> None:
    assert len(references()) > 10
    for one in references():
        assert one.source and re.fullmatch(r"20\d\d-\d\d(-\d\d)?", one.date), one
        assert COLUMNS[one.column].unit in ("s", "GB/s") and 0 < one.low <= one.high, one
        assert one.where in ("between", "within") and (one.most_bytes or 2**60) >= one.least_bytes, one
        assert re.compile(one.pattern) and re.compile(one.backend)


@pytest.mark.parametrize(("rate", "verdict"), [(1.18, NORMAL), (1.7, NORMAL), (1.8, FAST), (0.8, NORMAL), (0.7, SLOW)])
def test_far_is_beyond_a_factor(rate: float, verdict: str) -> None:
    (found,) = judge(cases(algbw_gb_per_s=rate), ["host.product=c5n.18xlarge"])
    assert found.verdict == verdict and bool(found.causes) == (verdict != NORMAL)


def test_a_long_time_is_slow_and_a_short_one_fast() -> None:
    latency = {"benchmark": "p2p_latency", "message_bytes": 8}
    for seconds, verdict in ((25e-6, NORMAL), (50e-6, SLOW), (1e-6, FAST)):
        (found,) = judge(cases(**latency, median_s=seconds), ["C5N.18XLARGE"])
        assert found.verdict == verdict


@pytest.mark.parametrize(
    "more", [{"ranks_per_node": 2, "layout": "1x2"}, {"message_bytes": 8}, {"backend": "mpi2"}, {"pair": "0-0"}]
)
def test_another_place_size_or_backend_is_not_compared(more: dict[str, object]) -> None:
    assert judge(cases(**more), ["c5n.18xlarge"]) == []
    assert judge(cases(), ["other hardware"]) == []


def test_expect_normal_is_judged_by_these_values(tmp_path: Path) -> None:
    """A run that a published value knows: the label names the hardware."""
    way = ("tcp", "python", 2e-6, 0.4e9)
    folder = run_of(tmp_path, 0)
    rng = np.random.default_rng(0)
    rows = [row(folder.name, "p2p_bandwidth", way, "2x1", 2**22, rng) | {"label": "c5n.18xlarge"}]
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema("cases")), folder / "cases.parquet")
    (said,) = abnormal(str(folder))
    assert said.startswith("expect normal: p2p_bandwidth 4 MiB, tcp python 2x1 has ")
    assert "c5n.18xlarge" in said and "connection" in said
    fast = [rows[0] | {"algbw_gb_per_s": 1.18}]
    pq.write_table(pa.Table.from_pylist(fast, arrow_schema("cases")), folder / "cases.parquet")
    assert abnormal(str(folder)) == []
