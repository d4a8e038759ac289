"""Reference values: files are well formed, and published values stand beside measured ones."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest

from commbench.analysis.documents import OVER_TIME
from commbench.analysis.normal import JUDGED_COLUMNS
from commbench.analysis.reference import (
    PUBLISHED_COLUMNS,
    UNITS,
    Point,
    beside,
    published,
    read_file,
    references,
)
from commbench.core.errors import ConfigError
from commbench.results.columns import CASES

COLUMNS = {column.name: column for column in CASES}


def test_every_value_has_a_source_a_date_and_a_range_in_a_known_column() -> None:
    assert len(references()) > 60
    units = {name: column.unit for name, column in COLUMNS.items()}
    for each in references():
        assert each.source and each.machine, each
        assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", each.date), each
        assert each.unit in UNITS, each
        assert each.column in COLUMNS or each.column == OVER_TIME or each.over, each
        if each.column in JUDGED_COLUMNS:
            of_unit = {"GB/s": "GB/s MB/s Gb/s Mb/s", "s": "s ms us us round trip"}
            assert each.unit in of_unit[units[each.column]], each
        assert each.span in (None, "itself", "within", "between"), each
        assert not each.is_of([]) and all(map(re.compile, each.recognised_by)), each
        for point in each.points:
            assert point.low <= point.high and 0 < point.value < math.inf, each
            assert point.least_bytes <= point.most_bytes, each


def test_selectors_name_columns_of_a_row() -> None:
    columns = {*COLUMNS, "span", "peer", "direction"}
    for each in references():
        names = {name for values in each.where for name in values} | {*(each.over or {})}
        assert {name.partition(".")[0] for name in names} <= columns, each


def test_a_file_is_inherited_from_the_top_down_and_says_which_keys_it_may_have() -> None:
    text = """
    machine: a machine
    recognised_by: [one, two]
    documents:
      - source: a document
        date: 2026-01-02
        column: algbw_gb_per_s
        unit: MB/s
        values:
          - {setting: a curve, where: {backend: tcp}, by_size: {1KiB: 10, 1MiB: 20}}
          - {setting: a floor, where: {backend: tcp}, sizes: 1KiB .., floor: 5, machine: another}
    """
    curve, floor = read_file(text)
    assert (curve.machine, curve.date, curve.unit) == ("a machine", "2026-01-02", "MB/s")
    assert [(point.message_bytes, point.value) for point in curve.points] == [
        (1024, 10),
        (2**20, 20),
    ]
    assert floor.machine == "another" and floor.points == (
        Point(5, math.inf, 1024, math.inf, is_threshold=True),
    )
    assert curve.is_of(["two and ONE"]) and not curve.is_of(["one", "two"])
    with pytest.raises(TypeError, match="colour"):
        list(read_file(text.replace("{backend: tcp}, by", "{backend: tcp}, colour: red, by")))
    with pytest.raises(ValueError, match="unpack"):
        list(read_file(text.replace("floor: 5", "floor: 5, value: 6")))


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
