"""A run whose files are damaged is refused by every reader alike: one line, status 2, at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import commbench
from commbench.cli.main import main

READERS = ("resume", "show", "report", "export", "compare", "predict")
DAMAGES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "no JSON": lambda record: record.write_text("{"),
    "a list": lambda record: record.write_text("[]"),
    "no text": lambda record: record.write_bytes(b"\xff"),
    "of another version": lambda record: record.write_text('{"schema_version": 99}'),
}


@pytest.fixture
def run(tmp_path: Path, outside_any_world: None) -> Path:
    words = ("benchmark=all_reduce", "timing=fixed", "timing.repetitions=10")
    return commbench.run(
        "backend=simulated", "writer=parquet", "sizes=[8]", f"output={tmp_path / 'r'}", *words
    )


def words_of(reader: str, run: Path) -> list[str]:
    more = {
        "export": ["--csv", "-"],
        "compare": [str(run)],
        "predict": ["--params", "1e6"],
    }
    return [reader, str(run), *more.get(reader, [])]


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


def test_a_finished_run_without_its_cases_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "cases.parquet").unlink()
    for reader in ("show", "report", "compare"):
        status = main(words_of(reader, run))
        lines = capsys.readouterr().err.splitlines()
        assert (status, len(lines)) == (2, 1), (reader, lines)
        assert f"{run} has no cases" in lines[0], reader
