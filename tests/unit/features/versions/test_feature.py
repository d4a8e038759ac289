"""`report --over`: the steps are its first lines, and nobody sees them who does not ask."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from version_rows import found_in, needs_published, planted, published, results_of

from commbench.cli.report import report
from commbench.features.versions.feature import over
from commbench.report.summary import Summary
from commbench.results.columns import SCHEMA_VERSION, arrow_schema
from commbench.results.row import Row, plain_values


@needs_published
def test_the_steps_of_nccl_on_b200_are_in_the_first_lines() -> None:
    section, *_ = over(Summary(results_of(published())), "library_version")
    rows = {cells[0]: cells for cells in section.headline[0].rows}
    found = {" ".join(name.split()[:-1]): cells[1:4] for name, cells in rows.items()}
    between = "2.28.9 and 2.29.2"
    assert found["all_gather 1x8 float16,"] == ("16 MiB .. 32 MiB", between, "1.43 x to 1.99 x")
    assert found["reduce_scatter 1x8 float16,"][:2] == ("16 MiB .. 32 MiB", between)
    assert found["all_reduce 1x4, 1x8 float16,"][:2] == ("8 MiB .. 16 MiB", between)
    assert found["all_to_all 1x2, 1x4, 1x8 float16,"][:2] == ("64 KiB .. 1 MiB", between)
    faster = found.pop("all_to_all 1x8 float16,", None)  # p is about 0.01
    assert faster is None or faster == ("4 MiB", between, "0.684 x to 0.705 x")
    assert len(found) == 4 and all(cells[4].startswith("certain") for cells in rows.values())
    count = len(rows)
    assert section.sentences[0].startswith(
        f"{count} steps in 504 series of 3 values of library_version: {count} certain. Without a"
        " step, the last value takes 0.9"
    )


def test_a_step_of_all_series_is_said_and_not_called_certain() -> None:
    rows = [
        replace(row, median_s=1.5 * row.median_s) if row.library_version == "2.0" else row
        for row in planted(1.3, 3, 0.02, 0)
    ]
    section, *_ = over(Summary(results_of(rows)), "library_version")
    steps_said, together = section.sentences
    assert steps_said.startswith("1 step in 30 series of 5 values")
    assert "take 1.5" in together and "at 2.0 as at 1.12" in together


def test_with_one_measurement_a_version_nothing_is_called_certain() -> None:
    findings = found_in(planted(2.0, 1, 0.02, 0))
    assert findings and not any(finding.is_certain for finding in findings)
    assert {step.series for finding in findings for step in finding.steps} == {4, 5, 6, 7}
    section, *_ = over(Summary(results_of(planted(2.0, 1, 0.02, 0))), "library_version")
    (cells,) = section.headline[0].rows
    assert cells[4] == "differs by more than the spread of the others"
    assert "certain" not in section.sentences[0]
    assert any("one measurement a value" in note for note in section.notes)


def test_the_command_prints_the_steps_alone_and_only_where_it_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_run = defaultdict[str, list[Row]](list)
    for row in planted(1.5, 3, 0.02, 0):
        by_run[row.run_id].append(replace(row, case_id=f"{row.benchmark}{row.message_bytes}"))
    for run, rows in by_run.items():
        folder = tmp_path / run
        folder.mkdir()
        table = pa.Table.from_pylist([plain_values(row) for row in rows], arrow_schema("cases"))
        pq.write_table(table, folder / "cases.parquet")
        (folder / "run.json").write_text(
            json.dumps({"run_id": run, "schema_version": SCHEMA_VERSION})
        )
    assert report([str(tmp_path), "--over", "library_version"]) == 0
    first, heads, line, *_ = capsys.readouterr().out.splitlines()
    assert first == "Steps over library_version" and heads.startswith("step of")
    assert line.split()[:5] == ["all_reduce", "1", "MiB", "..", "8"] and "certain" in line
    assert report([str(tmp_path)]) == 0
    assert "Steps over" not in capsys.readouterr().out
