"""A run whose files are damaged is refused by every reader alike: one line, status 2, at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import commbench
from commbench.cli.main import main
from commbench.results.columns import CASES, Column

READERS = ("resume", "show", "report", "export", "compare", "replay")
DAMAGES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "no JSON": lambda record: record.write_text("{"),
    "a list": lambda record: record.write_text("[]"),
    "no text": lambda record: record.write_bytes(b"\xff"),
    "of another version": lambda record: record.write_text('{"schema_version": 99}'),
}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("benchmark=all_reduce", "timing=fixed", "timing.repetitions=10")
    output = tmp_path_factory.mktemp("whole") / "r"
    return commbench.run(
        "backend=simulated", "writer=parquet", "sizes=[8]", f"output={output}", *words
    )


@pytest.fixture
def run(tmp_path: Path, whole_run: Path, outside_any_world: None) -> Path:
    """A copy of one run, to be damaged."""
    return shutil.copytree(whole_run, tmp_path / "r" / whole_run.name)


def words_of(reader: str, run: Path) -> list[str]:
    more = {
        "export": ["--csv", "-"],
        "compare": [str(run)],
    }
    before = ["ddp", "params=1e6", "--from"] if reader == "replay" else []
    return [reader, *before, str(run), *more.get(reader, [])]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_refused_by_every_reader_alike(
    run: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    (run / "run.json").unlink()
    DAMAGES[damage](run / "run.json")
    for reader in READERS:
        status = main(words_of(reader, run))
        lines = capsys.readouterr().err.splitlines()
        assert (status, len(lines)) == (2, 1), (reader, lines)
        assert str(run) in lines[0], reader


def test_of_many_damaged_runs_the_first_three_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(9):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        DAMAGES["of another version"](folder / "run.json")
    for reader in ("report", "compare"):
        assert main(words_of(reader, tmp_path)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.count("schema version 99") == 3 and "and 6 more" in line, reader


def test_a_finished_run_without_its_cases_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "cases.parquet").unlink()
    for reader in ("show", "report", "compare"):
        status = main(words_of(reader, run))
        lines = capsys.readouterr().err.splitlines()
        assert (status, len(lines)) == (2, 1), (reader, lines)
        assert f"{run} has no cases" in lines[0], reader


@pytest.mark.parametrize(
    ("column", "value", "cause"),
    [
        ("benchmark", None, "has rows without benchmark"),
        ("status", None, "has rows without status"),
        ("message_bytes", None, "has rows without message_bytes"),
        ("pair", "0-x", "has pair '0-x', which no case has"),
        ("pair", "\x1b[31m", r"has pair '\\x1b[31m', which no case has"),
        ("layout", "-1x0", "has layout '-1x0', which no case has"),
        ("ranks_per_node", 0, "has ranks_per_node 0, which no case has"),
        ("median_s", float("nan"), "has median_s nan, which no case has"),
        ("median_s", 1e308, "has median_s 1e+308, which no case has"),
        ("full_speed_s", float("nan"), "has full_speed_s nan, which no case has"),
        ("algbw_gb_per_s", 1e308, "has algbw_gb_per_s 1e+308, which no case has"),
        ("ci_low_s", -1.0, "has ci_low_s -1.0, which no case has"),
        ("interval_level", 1e308, "has interval_level 1e+308, which no case has"),
        ("layout", "1x0", "has layout '1x0', which no case has"),
        ("median_s", None, "has a case with status ok and without median_s"),
        ("window", 2**63 - 1, "has window 9223372036854775807, which no case has"),
        ("started_at", 2**62, "has started_at 4611686018427387904, which no case has"),
        ("status", "fine", "has status 'fine', which no case has"),
        ("headline", "none", "has headline 'none', which no case has"),
        ("headline", "receiver", "has a case with the clock of a pair, and without a pair"),
        ("warnings", [None], "has warnings None, which no case has"),
        ("visit_medians_s", [None], "has visit_medians_s None, which no case has"),
        ("visit_launches", [], "has visit_medians_s and visit_launches of different lengths"),
        ("visit_medians_s", [1e-6] * 99, "has visit_medians_s and visit_launches of different"),
    ],
)
def test_a_value_that_no_case_has_is_refused_by_every_reader_alike(
    run: Path, capsys: pytest.CaptureFixture[str], column: str, value: object, cause: str
) -> None:
    path = run / "cases.parquet"
    set_column(path, column, value)
    for reader in ("show", "report", "compare"):
        status = main(words_of(reader, run))
        lines = capsys.readouterr().err.splitlines()
        assert (status, len(lines)) == (2, 1), (reader, lines)
        assert f"{path} {cause}" in lines[0], reader


WRONG_KINDS: dict[str, object] = {
    "text": 5, "integer": "5", "number": "5", "flag": 1, "texts": [5], "numbers": ["5"],
    "integers": ["5"], "map": 5, "time": 5,
}  # fmt: skip


@pytest.mark.parametrize("column", CASES, ids=lambda column: column.name)
def test_a_column_of_another_type_is_refused_in_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], column: Column
) -> None:
    path = run / "cases.parquet"
    table = pq.read_table(path)
    values = pa.array([WRONG_KINDS[column.kind]] * len(table))
    at = table.schema.get_field_index(column.name)
    pq.write_table(table.set_column(at, column.name, values), path)
    for reader in ("show", "report", "compare"):
        status = main(words_of(reader, run))
        lines = capsys.readouterr().err.splitlines()
        assert (status, len(lines)) == (2, 1), (reader, lines)
        assert f"{path}: column {column.name} is not of type" in lines[0], reader


@pytest.mark.parametrize(
    ("column", "value"),
    [("ranks_per_node", None), ("world_size", None), ("p99_s", 0.0), ("ci_high_s", 0.0)],
)
def test_a_value_that_is_not_needed_may_be_unknown(
    run: Path, capsys: pytest.CaptureFixture[str], column: str, value: object
) -> None:
    set_column(run / "cases.parquet", column, value)
    for reader in ("show", "report", "compare"):
        assert main(words_of(reader, run)) == 0, reader
        assert "Warning" not in capsys.readouterr().err


def set_column(path: Path, column: str, value: object) -> None:
    table = pq.read_table(path)
    field = table.schema.field(column)
    values = pa.array([value] * len(table), field.type)
    pq.write_table(table.set_column(table.schema.get_field_index(column), field, values), path)
