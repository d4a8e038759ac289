"""Tables of other versions, of other programs and with flipped bits: read right, or refused by
name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flipped_bits import read_as_other

import commbench
from commbench.core.errors import CommbenchError
from commbench.results.columns import arrow_schema


def test_foreign_tables_are_named(killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    part = folder / "parts" / "000009.cases.parquet"
    pq.write_table(pa.table({"city": ["x"]}), part)
    with pytest.raises(
        CommbenchError,
        match=r"000009\.cases\.parquet is not a table of cases: it has the columns city",
    ):
        commbench.load(folder)
    part.unlink()
    (folder / "run.json").write_text("[1]")
    with pytest.raises(
        CommbenchError, match=r"run\.json is not the record of a run: it holds a list"
    ):
        commbench.load(folder)


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("status", ["done"], "status"),
        ("overrides", ["backend=gloo", {}], "overrides"),
        ("world", {"ranks": [3]}, r"world\.ranks"),
        ("world", {"ranks": [["0"]]}, r"world\.ranks"),
    ],
)
def test_a_record_with_a_part_of_another_type_is_refused_in_one_line(
    finished: Path, tmp_path: Path, part: str, value: object, named: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    file = folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {part: value}))
    with pytest.raises(CommbenchError, match=rf"run\.json .*: {named} has another type"):
        commbench.load(folder)


def test_results_may_be_added_within_a_version(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    file = folder / "cases.parquet"
    rows = pq.read_table(file)
    later = rows.drop_columns(["skew_s"]).append_column("colour", pa.nulls(len(rows)))
    pq.write_table(later, file)
    seen = commbench.load(folder)
    assert list(seen.columns) == arrow_schema("cases").names
    assert seen["skew_s"].isna().all()
    assert seen["median_s"].equals(commbench.load(finished)["median_s"])
    pq.write_table(rows.drop_columns(["sync"]), file)
    with pytest.raises(
        CommbenchError, match=r"cases\.parquet is not a table of cases: .* but not sync;"
    ):
        commbench.load(folder)


def test_a_variable_that_earlier_rows_lack_has_its_default_and_a_result_is_null(
    finished: Path, tmp_path: Path
) -> None:
    rows = pq.read_table(finished / "cases.parquet")
    earlier = tmp_path / "earlier.parquet"
    pq.write_table(rows.drop_columns(["bind", "timer", "env", "source"]), earlier)
    cases = commbench.load(earlier)
    assert set(cases["bind"]) == {"auto"}
    assert set(cases["timer"]) == {"host"}
    assert set(cases["env"]) == {"{}"}
    assert cases["source"].isna().all()
    assert list(cases.columns) == list(commbench.load(finished).columns)


LAUNCHES = [0.0, 1.0, 2**52]  # as floats, which hold them exactly


def test_launches_that_earlier_files_have_as_floats_are_counts(
    finished: Path, tmp_path: Path
) -> None:
    column = with_launches(finished, tmp_path, LAUNCHES)
    assert column == [(0, 1, 2**52)] * len(column)
    assert {type(launch) for launches in column for launch in launches} == {int}
    with pytest.raises(CommbenchError, match="column visit_launches is not of type list<"):
        with_launches(finished, tmp_path, [0.0, 1.0, 1.5])


def with_launches(run: Path, folder: Path, launches: list[float]) -> list[tuple[int, ...]]:
    """The column of the run with these floats in each case."""
    table = pq.read_table(run / "cases.parquet")
    for name, values in (("visit_launches", launches), ("visit_medians_s", [1e-6] * 3)):
        at = table.schema.get_field_index(name)
        column = pa.array([values] * len(table), pa.list_(pa.float64()))
        table = table.set_column(at, name, column)
    pq.write_table(table, folder / "cases.parquet")
    return commbench.load(folder / "cases.parquet")["visit_launches"].tolist()


@pytest.mark.parametrize("table", ["cases", "samples"])
def test_a_flipped_bit_is_never_another_number(finished: Path, tmp_path: Path, table: str) -> None:
    file = tmp_path / f"{table}.parquet"
    shutil.copy(finished / file.name, file)
    assert read_as_other(file, table) == 0


def test_columns_are_found_in_files_of_other_programs(finished: Path, tmp_path: Path) -> None:
    """Theirs have no schema of Arrow, whose names are compared."""
    rows = pq.read_table(finished / "cases.parquet")
    pq.write_table(rows, tmp_path / "theirs.parquet", store_schema=False)
    assert (
        list(commbench.load(tmp_path / "theirs.parquet").median_s) == rows["median_s"].to_pylist()
    )
