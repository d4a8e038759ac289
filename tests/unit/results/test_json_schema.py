"""What is stored fits the published schemas of rows and of run.json."""

from __future__ import annotations

import json
from pathlib import Path

from schemas import check_record, row_validator

import commbench
from commbench.results.load import load_run


def test_lines_and_records_of_a_run_fit_the_schemas(tmp_path: Path) -> None:
    folder = commbench.run(
        backend="simulated", layout="1x3", sizes=[8], writer=["jsonl"], output=str(tmp_path)
    )
    lines = (Path(folder) / "cases.jsonl").read_text().splitlines()
    for line in lines:
        row_validator().validate(json.loads(line))
    assert len(lines) > 3
    check_record(load_run(folder))


def test_a_row_with_another_status_does_not_fit() -> None:
    row = {"schema_version": 4, "run_id": "r", "case_id": "c", "status": "good"}
    errors = [*row_validator().iter_errors(row)]
    assert [error.json_path for error in errors] == ["$.status"]
