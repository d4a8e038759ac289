"""Tables of the notebooks: published values beside measured ones, and the time to full speed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from notebook_tables import PUBLISHED_COLUMNS, beside, full_speed, published

from commbench.analysis.cold_start import SOAK_INTERVAL
from commbench.analysis.documents import OVER_TIME
from commbench.core.errors import ConfigError
from commbench.results.columns import CASES


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
    units = {column.name: column.unit for column in CASES} | {"ratio": "", OVER_TIME: "GB/s"}
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
        for value in values.itertuples():
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


def line(rates: list[float], run: str = "r") -> pd.DataFrame:
    frame = pd.DataFrame(
        {"at_s": np.arange(len(rates)) * 0.1, "rate_gb_per_s": rates, "busy_s": 0.1}
    )
    columns = dict.fromkeys((name for name in SOAK_INTERVAL if name not in frame), "x")
    return frame.assign(**{**columns, "run_id": run})


@pytest.mark.parametrize(
    ("rates", "begun", "least"),
    [
        ([1.0] * 20, 0.0, 1.0),
        ([0.3] * 4 + [0.6, 0.7, 0.7] + [1.0] * 20, 0.7, 1.0),
        ([0.94] + [1.0] * 20, 0.1, 1.0),
        ([0.95] + [1.0] * 20, 0.0, 0.95),
        ([1.0] * 10 + [0.2] + [1.0] * 10, 0.0, 0.2),
        ([0.4] * 15 + [1.0] * 5, 1.5, 1.0),
        ([0.4] * 4 + [1.0] + [0.4] * 5 + [1.0] * 10, 1.0, 1.0),
    ],
)
def test_full_speed_is_95_percent_of_the_rate_at_the_end(
    rates: list[float], begun: float, least: float
) -> None:
    (row,) = full_speed(line(rates)).to_dict("records")
    assert row["steady_gb_per_s"] == 1.0
    assert row["full_speed_s"] == pytest.approx(begun)
    assert row["least_gb_per_s"] == pytest.approx(least)


def test_each_soak_has_its_own_row() -> None:
    both = pd.concat([line([1.0] * 8, "a"), line([0.5] + [2.0] * 7, "b")])
    assert full_speed(both).set_index("run_id").full_speed_s.to_dict() == {
        "a": 0.0,
        "b": pytest.approx(0.1),
    }
