"""`report --over`: the steps are its first lines, and every report of several versions has them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from places import AICONFIGURATOR
from version_rows import found_in, needs_published, planted, published, results_of

from commbench.cli.report import report
from commbench.core.errors import ConfigError
from commbench.features.other_tools.command import import_results
from commbench.features.versions.reporting import doubts, over
from commbench.report.summary import Summary
from commbench.results.columns import SCHEMA_VERSION, arrow_schema
from commbench.results.row import Row, plain_values


@needs_published
def test_the_steps_of_nccl_on_b200_are_in_the_first_lines() -> None:
    section, *_ = over("library_version", Summary(results_of(published())))
    rows = {cells[0]: cells for cells in section.headline[0].rows}
    found = {" ".join(name.split()[:-1]): cells[1:4] for name, cells in rows.items()}
    between = "2.28.9 and 2.29.2"
    assert found["all_gather 1x8 float16,"] == ("16 MiB .. 32 MiB", between, "1.43 x to 1.99 x")
    assert found["reduce_scatter 1x8 float16,"][:2] == ("16 MiB .. 32 MiB", between)
    assert found["all_reduce 1x4, 1x8 float16,"][:2] == ("8 MiB .. 16 MiB", between)
    assert found["all_to_all 1x2, 1x4, 1x8 float16,"][:2] == ("64 KiB .. 1 MiB", between)
    assert found["all_to_all 1x8 float16,"] == ("4 MiB", between, "0.685 x to 0.704 x")
    certainties = [cells[4].split()[0] for cells in rows.values()]
    assert certainties == ["certain"] * 4 + ["likely"], "p of the last is 0.011"
    assert section.sentences[0].startswith(
        "5 steps in 504 series of 3 values of library_version: 4 certain, 1 likely. Without a step,"
        " the last value takes 0.9"
    )


@needs_published
@pytest.mark.long
def test_the_version_of_a_row_counts_and_not_that_of_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All fifteen files: the two oldest of B200, of H100 and of H200 have rows of 2.29.2."""
    files = sorted(map(str, AICONFIGURATOR.glob("*.parquet")))
    assert len(files) == 15
    assert import_results([*files, "--output", str(tmp_path)]) == 0
    assert report([str(tmp_path), "--over", "library_version", "--top", "5"]) == 0
    out = capsys.readouterr().out
    lines = out[out.index("Steps over library_version") :].splitlines()
    assert "5 steps in 504 series of 3 values" in " ".join(lines[7:9]), "of B200 alone"
    assert all("2.28.9 and 2.29.2" in line for line in lines[2:7])


@needs_published
def test_a_report_of_several_versions_names_the_steps_unasked() -> None:
    pointer, *named = doubts(Summary(results_of(published())))
    assert pointer.startswith("5 steps from version to version: commbench report ")
    assert len(named) == 3 and all(
        "as long with 2.29.2 as with 2.28.9, cer" in each for each in named
    )
    one = [row for row in published() if row.library_version == "2.29.2"]
    assert not [*doubts(Summary(results_of(one)))]


def test_a_step_of_all_series_is_said_and_not_called_certain() -> None:
    rows = [
        replace(row, median_s=1.5 * row.median_s) if row.library_version == "2.0" else row
        for row in planted(1.3, 3, 0.02, 0)
    ]
    section, *_ = over("library_version", Summary(results_of(rows)))
    together, steps_said = section.sentences
    assert steps_said.startswith("1 step in 30 series of 5 values")
    assert "take 1.5" in together and "at 2.0 as at 1.12" in together


@pytest.mark.parametrize("size", [1, 4, 30])
def test_a_step_of_all_series_is_said_however_few_they_are_and_unasked(size: int) -> None:
    rows = [
        replace(row, median_s=1.5 * row.median_s) if row.library_version == "2.0" else row
        for row in planted(1.0, 1, 0.01, 0)
        if size == 30 or (row.benchmark == "broadcast" and row.message_bytes < 2 ** (16 + size))
    ]
    summary = Summary(results_of(rows))
    (section,) = over("library_version", summary)
    together, none = section.sentences
    assert "1.5" in together and "as long at 2.0 as at 1.12" in together
    assert none.startswith("No step in ")
    assert "too few runs to tell: 1 of each value; measure 3." in none
    pointer, said = doubts(summary)
    assert pointer.startswith("A step of all series from version to version") and said == together


def test_too_few_runs_are_said_with_what_was_seen_and_what_is_needed() -> None:
    rows = [
        replace(row, median_s=1.5 * row.median_s) if row.library_version == "2.0" else row
        for row in planted(1.0, 3, 0.01, 0)
        if row.benchmark == "broadcast"
        and row.message_bytes == 2**20
        and row.library_version in ("1.11", "1.12", "2.0")
    ]
    section, own = over("library_version", Summary(results_of(rows)))
    (cells,) = section.headline[0].rows
    assert cells[2] == "1.12 and 2.0" and cells[3].startswith("1.5")
    assert cells[4] == "too few runs to tell: 3 of each value; measure 4"
    (said,) = section.sentences
    assert said.startswith("1 step in 1 series of 3 values of library_version: 1 of too few runs")
    assert own.tables[0].rows, "its times"


def test_noise_of_few_series_is_no_step_of_all() -> None:
    """Runs of a busy machine overlap."""
    rng = np.random.default_rng(0)
    rows = [row for row in planted(1.0, 8, 0.01, 0) if row.message_bytes < 2**18]
    busy = {run: float(np.exp(rng.normal(0, 0.2))) for run in {row.run_id for row in rows}}
    rows = [replace(row, median_s=busy[row.run_id] * row.median_s) for row in rows]
    (section,) = over("library_version", Summary(results_of(rows)))
    assert len(section.sentences) == 1 and section.sentences[0].startswith("No step in ")


def test_with_one_measurement_a_version_nothing_is_called_certain() -> None:
    findings = found_in(planted(2.0, 1, 0.02, 0))
    assert findings and not any(finding.is_certain for finding in findings)
    assert {step.series for finding in findings for step in finding.steps} == {4, 5, 6, 7}
    section, *_ = over("library_version", Summary(results_of(planted(2.0, 1, 0.02, 0))))
    (cells,) = section.headline[0].rows
    assert cells[4] == "differs by more than the spread of the others"
    assert "certain" not in section.sentences[0]
    assert any("their noise is not known" in note for note in section.notes)


def test_a_variable_with_one_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="no case was measured with two values of it"):
        [*over("interface", Summary(results_of(planted(1.0, 1, 0.01, 0))))]


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
    out = " ".join(capsys.readouterr().out.split())
    assert "1 step from version to version" in out and "Steps over" not in out
