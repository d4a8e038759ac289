"""Every writer: takes a run's rows of every status, in a folder of its own, and
survives having none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_cases import case_row

import commbench
from commbench.config.compose import ConfigComposer
from commbench.config.targets import construct
from commbench.results.columns import CASES, SCHEMA_VERSION
from commbench.results.row import WORDS, Row
from commbench.results.run_folder import write_json
from commbench.results.writer import Entry


def writers() -> list[str]:
    with ConfigComposer() as composer:
        return composer.options("writer")


def built(name: str) -> Any:
    with ConfigComposer() as composer:
        nodes = composer.config([f"writer=[{name}]"]).writers
        return construct({str(key): value for key, value in nodes[name].items()}, "writer", ())


def run_of(folder: Path, cases: int) -> dict[str, Any]:
    world = {"size": 2, "nodes": 1}
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": "r",
        "folder": str(folder),
        "cases": cases,
        "at_most_s": 2.0,
        "timing": "quick",
        "label": "<script>",
        "backend": {"name": "gloo", "library": "x"},
        "world": world,
    }


def row_of(status: str, size: int) -> Row:
    texts = {column.name: "x" for column in CASES if column.kind == "text"}
    texts |= {name: words[0] for name, words in WORDS.items()}
    numbers = {column.name: 0.5 for column in CASES if column.kind == "number" and status == "ok"}
    own = {
        "layout": "1x2",
        "case_id": f"{status}{size}",
        "run_id": "r",
        "env": {"A": "b"},
        "warnings": ["skewed"],
        "status": status,
        "reason": "why [bold]",
        "message_bytes": size,
        "pair": "0-1",
        "order": size,
    }
    return case_row(**texts | numbers | own)


def samples_of(case_id: str) -> dict[str, Any]:
    text = np.full(2, "r", dtype=object)
    numbers = np.arange(2)
    return {
        "run_id": text,
        "case_id": np.full(2, case_id, dtype=object),
        "phase": np.full(2, "measure", dtype=object),
        "block": numbers,
        "repetition": numbers,
        "rank": numbers,
        "start_ns": numbers,
        "end_ns": numbers + 5,
        "elapsed_ns": numbers * 0 + 5,
        "visit": numbers * 0 + 1,
    }


def entry_of(row: Row) -> Entry:
    return Entry(row, samples_of(row.case_id) if row.status == "ok" else {})


@pytest.mark.parametrize("name", writers())
def test_it_takes_rows_of_every_status(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = built(name)
    run = run_of(tmp_path, 4)
    writer.begin(run, str(tmp_path))
    for index, status in enumerate(("ok", "skipped", "failed", "invalid")):
        row = row_of(status, index)
        writer.cases([entry_of(row)])
    writer.end(run | {"status": "done", "exit_status": 1})
    captured = capsys.readouterr()
    assert captured.out or any(tmp_path.iterdir())
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("name", writers())
def test_it_survives_a_run_without_cases(name: str, tmp_path: Path) -> None:
    writer = built(name)
    run = run_of(tmp_path, 0)
    writer.begin(run, str(tmp_path))
    writer.end(run)


def test_parquet_gives_back_what_it_took_before_and_after_the_end(tmp_path: Path) -> None:
    writer = built("parquet")
    run = run_of(tmp_path, 2)
    writer.begin(run, str(tmp_path))
    rows = [row_of("ok", 8), row_of("skipped", 16)]
    for row in rows:
        writer.cases([entry_of(row)])
    before = commbench.load(tmp_path)
    writer.end(run)
    after = commbench.load(tmp_path)
    assert before.equals(after) and list(after.case_id) == ["ok8", "skipped16"]
    assert after.env[0] == '{"A": "b"}' and after["warnings"][0] == "skewed"
    assert list(commbench.load(tmp_path, table="samples").elapsed_ns) == [5, 5]
    assert not (tmp_path / "parts").exists()


def test_json_appears_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"a": 1})
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
