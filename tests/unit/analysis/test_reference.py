"""Published values: well formed, matched by hardware and place, and beside measured ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import row, run_of

from commbench.analysis.reference import (
    FAST,
    NORMAL,
    PUBLISHED_COLUMNS,
    SLOW,
    beside,
    judge,
    published,
    references,
)
from commbench.cli.rank import verdict_on_normal
from commbench.core.errors import ConfigError
from commbench.results.columns import CASES, arrow_schema

COLUMNS = {column.name: column for column in CASES}


def cases(**more: object) -> pd.DataFrame:
    row = {
        "benchmark": "p2p_bandwidth",
        "backend": "tcp",
        "engine": "python",
        "layout": "2x1",
        "pair": "0-1",
        "message_bytes": 2**22,
        "world_size": 2,
        "ranks_per_node": 1,
        "algbw_gb_per_s": 1.18,
        "busbw_gb_per_s": None,
        "median_s": 3.5e-3,
    }
    return pd.DataFrame([row | more])


def test_every_value_has_a_source_a_date_and_a_range_in_a_known_column() -> None:
    assert len(references()) > 10
    for reference in references():
        assert reference["source"] and re.fullmatch(r"20\d\d-\d\d(-\d\d)?", reference["date"]), (
            reference
        )
        assert (
            COLUMNS[reference["column"]].unit in ("s", "GB/s")
            and 0 < reference["low"] <= reference["high"]
        ), reference
        assert (
            reference["where"] in ("between", "within")
            and (reference["most_bytes"] or 2**60) >= reference["least_bytes"]
        ), reference
        assert re.compile(reference["pattern"]) and re.compile(reference["backend"])


@pytest.mark.parametrize(
    ("rate", "verdict"), [(1.18, NORMAL), (1.7, NORMAL), (1.8, FAST), (0.8, NORMAL), (0.7, SLOW)]
)
def test_far_is_beyond_a_factor(rate: float, verdict: str) -> None:
    (judged,) = judge(cases(algbw_gb_per_s=rate), ["host.product=c5n.18xlarge"])
    assert judged.verdict == verdict and bool(judged.causes) == (verdict != NORMAL)


def test_a_long_time_is_slow_and_a_short_one_fast() -> None:
    latency = {"benchmark": "p2p_latency", "message_bytes": 8}
    for seconds, verdict in ((25e-6, NORMAL), (50e-6, SLOW), (1e-6, FAST)):
        (judged,) = judge(cases(**latency, median_s=seconds), ["C5N.18XLARGE"])
        assert judged.verdict == verdict


@pytest.mark.parametrize(
    "more",
    [
        {"ranks_per_node": 2, "layout": "1x2"},
        {"message_bytes": 8},
        {"backend": "mpi2"},
        {"pair": "0-0"},
    ],
)
def test_another_place_size_or_backend_is_not_compared(more: dict[str, object]) -> None:
    assert judge(cases(**more), ["c5n.18xlarge"]) == []
    assert judge(cases(), ["other hardware"]) == []
    assert judge(cases(warnings=["oversubscribed"]), ["c5n.18xlarge"]) == []


def test_two_labels_are_two_cases() -> None:
    both = pd.concat([cases(label="tuned"), cases(label="plain", algbw_gb_per_s=0.7)])
    slow, normal = judge(both, ["c5n.18xlarge"])
    assert (slow.verdict, slow.case) == (SLOW, "p2p_bandwidth 4 MiB, tcp python 2x1 plain")
    assert (normal.verdict, normal.case) == (NORMAL, "p2p_bandwidth 4 MiB, tcp python 2x1 tuned")


def test_only_what_others_published_is_called_published() -> None:
    (judged,) = judge(cases(), ["c5n.18xlarge"])
    assert judged.expected == "published 1.18 GB/s .. 1.19 GB/s"
    own = {
        "benchmark": "p2p_latency",
        "backend": "mpi",
        "layout": "1x2",
        "ranks_per_node": 2,
        "message_bytes": 8,
    }
    (judged,) = judge(
        cases(**own, median_s=1e-6), ["host.cpu_model=AMD EPYC; host.cpu_logical_cores=2"]
    )
    assert judged.expected == "measured by commbench on 2026-11-21: 218 ns .. 2.17 us"


def test_expect_normal_is_judged_by_these_values(
    tmp_path: Path,
) -> None:
    """A run that a published value knows: the label names the hardware."""
    way = ("tcp", "python", 2e-6, 0.4e9)
    folder = run_of(tmp_path, 0)
    rng = np.random.default_rng(0)
    rows = [row(folder.name, "p2p_bandwidth", way, "2x1", 2**22, rng) | {"label": "c5n.18xlarge"}]
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema("cases")), folder / "cases.parquet")
    (message,) = verdict_on_normal(str(folder)).missed
    assert message.startswith("expect=normal: p2p_bandwidth 4 MiB, tcp python 2x1 has ")
    assert "c5n.18xlarge" in message and "connection" in message
    fast = [rows[0] | {"algbw_gb_per_s": 1.18}]
    pq.write_table(pa.Table.from_pylist(fast, arrow_schema("cases")), folder / "cases.parquet")
    assert verdict_on_normal(str(folder)).summary() == "expect: 1 of 1 met"
    unknown = [rows[0] | {"label": "a machine that nobody described"}]
    pq.write_table(pa.Table.from_pylist(unknown, arrow_schema("cases")), folder / "cases.parquet")
    verdict = verdict_on_normal(str(folder))
    assert verdict.summary() == "expect: 0 of 1 met, 1 not measured" and not verdict.passes("fail")
    nothing = "expect=normal: no value is known for this hardware"
    assert verdict.not_measured[0].startswith(nothing)


def ours(*rows: tuple[str, int | None, str, float]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=["setting", "message_bytes", "column", "value"])


def test_the_osu_tables_are_complete() -> None:
    values = published("ec2_streams")
    for setting in ("mpi, btl_tcp_links 1", "mpi, btl_tcp_links 36", "mpi, 72 pairs"):
        rates = values[(values.setting == setting) & (values.column == "algbw_gb_per_s")]
        assert rates.message_bytes.tolist() == [2**power for power in range(23)]
    pair = (
        values[(values.setting == "mpi, 72 pairs") & (values.message_bytes == 4096)]
        .set_index("column")
        .value
    )
    assert pair["algbw_gb_per_s"] == 11.96732  # 11967.32 MB/s
    # the two columns of the note agree with each other: bytes x messages/s
    assert pair["message_rate_per_s"] * 4096 / 1e9 == pytest.approx(
        pair["algbw_gb_per_s"], rel=1e-5
    )


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("openbsd_pairs", "another node", 936e6 / 8 / 1e9),
        ("openbsd_pairs", "the same node", 1050e6 / 8 / 1e9),
        ("openbsd_soak", "at 1201 ms", 937.261e6 / 8 / 1e9),
        ("ec2_streams", "tcp, 36 streams", 93.0e9 / 8 / 1e9),
        ("mlbench_p2p", "between two nodes", 7.5e9 / 8 / 1e9),
        ("ec2_enhanced", "latency, B over A", 2.37),
    ],
)
def test_line_rates_are_in_our_units(name: str, setting: str, value: float) -> None:
    values = published(name)
    assert values[values.setting == setting].value.tolist() == pytest.approx([value], rel=1e-6)


def test_every_value_has_a_source_and_a_unit_that_fits_its_column() -> None:
    units = {column.name: column.unit for column in CASES} | {
        "seconds": "s",
        "ratio": "",
        "count": "",
    }
    for name in (
        "mlbench_p2p",
        "ec2_streams",
        "openbsd_pairs",
        "openbsd_soak",
        "ec2_enhanced",
        "exchange_quiz",
    ):
        values = published(name)
        assert tuple(values.columns) == PUBLISHED_COLUMNS
        assert values[["source", "place", "value"]].notna().all(axis=None)
        assert (values.value > 0).all()
        for value in values.fillna({"unit": ""}).itertuples():
            assert value.unit == units[str(value.column)], value


def test_ours_stand_beside_theirs() -> None:
    values = published("openbsd_pairs")
    table = beside(values, ours(("another node", None, "algbw_gb_per_s", 0.234)))
    row = table[table.setting == "another node"].iloc[0]
    assert (row.published, row.ours, row.ratio) == (0.117, 0.234, pytest.approx(2.0))
    assert table[table.setting != "another node"].ours.isna().all()
    assert len(table) == len(values)


def test_sizes_are_told_apart() -> None:
    table = beside(
        published("ec2_streams"), ours(("mpi, btl_tcp_links 1", 64, "algbw_gb_per_s", 1.0))
    )
    assert table[table.ours.notna()].message_bytes.tolist() == [64]


def test_a_point_twice_is_refused() -> None:
    point = ("another node", None, "algbw_gb_per_s", 1.0)
    with pytest.raises(ConfigError, match="twice"):
        beside(published("openbsd_pairs"), ours(point, point))


def test_an_experiment_without_values_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"mlbench_allreduce has no published values; it has: ec2_enhanced, "
    ):
        published("mlbench_allreduce")
