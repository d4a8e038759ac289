"""The page's section of a replayed job: its time lines, its operations and the causes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from commbench.cli.main import main
from commbench.report.section import Section
from commbench.report.summary import read_results
from commbench_replay.schedule import ScheduledOperation
from commbench_replay.section import _levels, replay_sections

SIMULATED = "backend=simulated writer=parquet timing=quick timing.pass_s=0"
JOB = """{"format": "commbench workload", "version": 1,
"ranks": 4, "steps": 1, "step_s": 0.02, "unknown": [],
"groups": [[0,1,2,3],[0,1],[2,3]],
"operations": [
{"group":0,"operation":"all_gather","dtype":"float32","input_bytes":[16384],
 "output_bytes":[65536],"job_s":0.0005},
{"group":1,"operation":"all_reduce","dtype":"float32","input_bytes":[4096],
 "output_bytes":[4096],"job_s":0.0002},
{"group":2,"operation":"all_reduce","dtype":"float32","input_bytes":[4096],
 "output_bytes":[4096],"job_s":0.0003}],
"orders": [
{"ranks":[0,1],"calls":[[0,0.002,0],[1,0.001,0],[0,0.0,1]]},
{"ranks":[2,3],"calls":[[0,0.002,0],[2,0.001,0],[0,0.0,0]]}]}"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replayed")
    path = folder / "job.json"
    path.write_text(JOB)
    on = f"{SIMULATED} layout=1x4 output='{folder / 'results'}'"
    assert main(["replay", str(path), "--on", on]) == 0
    return folder / "results"


def section_of(results: Path) -> Section:
    (section,) = replay_sections(read_results([str(results)]))
    return section


def test_it_has_a_row_for_each_kind_of_operation_and_a_sentence_for_each_cause(
    results: Path,
) -> None:
    section = section_of(results)
    assert re.fullmatch(r"Replay of job@\w{12}, simulated, layout 1x4", section.title)
    (table,) = section.tables
    assert [tuple(cells[:5]) for cells in table.rows] == [
        ("all_gather float32", "ranks 0-3", "2", "64 KiB", "500 us"),
        ("all_reduce float32", "ranks 0-1", "1", "4 KiB", table.rows[1][4]),
    ]
    names = [text.partition(":")[0] for text in section.sentences[1:]]
    assert names == ["its operations one after another", "interference", "contention"]


def test_the_page_of_a_replay_has_the_section(results: Path, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    assert main(["report", str(results), "--html", str(html)]) == 0
    text = html.read_text()
    assert "<h2>Replay of job@" in text and "<li>contention: " in text


def test_time_lines_have_a_lane_for_each_group(results: Path) -> None:
    in_job, here = section_of(results).figures()
    assert "in the job" in in_job.title and "each alone, here" in here.title
    for text in (b"ranks 0-3", b"ranks 0-1", b"ranks 2-3", b"all_gather", b"all_reduce"):
        assert text in in_job.svg


def test_operations_that_run_at_once_in_a_group_lie_below_one_another() -> None:
    runs = [
        ScheduledOperation(number, (0, 1), None, 2.0, begin_s)
        for number, begin_s in enumerate((0.0, 1.0, 2.0))
    ]
    placed = [(level, levels) for _, level, levels in _levels(runs)]
    assert placed == [(0, 2), (1, 2), (0, 2)]


def test_a_workload_that_is_gone_is_said(results: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "moved"
    for record in results.glob("*/*/run.json"):
        shutil.copytree(record.parent, elsewhere / record.parent.name)
        copied = elsewhere / record.parent.name / record.name
        copied.write_text(record.read_text().replace(str(results), str(tmp_path / "gone")))
    section = section_of(elsewhere)
    assert not section.figures() and "workload file is not where" in section.sentences[0]
