"""Reference values: files are well formed, and published values stand beside measured ones."""

from __future__ import annotations

import math
import re

import pytest

from commbench.features.documents.normal import JUDGED_COLUMNS
from commbench.features.documents.reference import (
    DERIVED_FACTS,
    UNITS,
    Point,
    of_experiment,
    read_file,
    references,
)
from commbench.features.documents.values import OVER_TIME
from commbench.results.columns import CASES

COLUMNS = {column.name: column for column in CASES}


def test_every_value_has_a_source_a_date_and_a_range_in_a_known_column() -> None:
    assert len(references()) > 60
    units = {name: column.unit for name, column in COLUMNS.items()}
    for each in references():
        assert each.source and each.machine, each
        assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", each.date), each
        assert each.unit in UNITS, each
        assert each.column in (*COLUMNS, *DERIVED_FACTS, OVER_TIME) or each.over, each
        if each.column in JUDGED_COLUMNS:
            of_unit = {"GB/s": "GB/s MB/s Gb/s Mb/s", "s": "s ms us us round trip"}
            assert each.unit in of_unit[units[each.column]], each
        assert each.span in (None, "itself", "within", "between"), each
        assert not each.is_of([]) and all(map(re.compile, each.recognised_by)), each
        for point in each.points:
            assert point.low <= point.high and 0 < point.value < math.inf, each
            assert point.least_bytes <= point.most_bytes, each


def test_selectors_name_columns_of_a_row() -> None:
    columns = {*COLUMNS, *DERIVED_FACTS}
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


def test_the_osu_tables_are_complete() -> None:
    curves = {
        (each.setting, each.column): {point.message_bytes: point.value for point in each.points}
        for each in of_experiment("ec2_streams")
        if len(each.points) > 1
    }
    assert len(curves) == 4
    assert all([*curve] == [2**power for power in range(23)] for curve in curves.values())
    rates, messages = (
        curves["mpi, 72 pairs", name] for name in ("algbw_gb_per_s", "message_rate_per_s")
    )
    assert rates[4096] == 11967.32
    # the two columns of the note agree with each other: bytes x messages/s
    for size, rate in rates.items():
        assert messages[size] * (size or 0) / 1e6 == pytest.approx(rate, rel=1e-3)
