"""The page's section of a replayed job: its time lines, its operations and the causes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from commbench.cli.main import main
from commbench.replay.generators import generate
from commbench.replay.scaling import scaled
from commbench.replay.section import ReplayView, replay_views, time_line
from commbench.report.summary import read_results

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


def only_view(results: Path) -> ReplayView:
    (view,) = replay_views(read_results([str(results)]))
    return view


def test_it_has_a_row_for_each_kind_of_operation_and_a_sentence_for_each_cause(
    results: Path,
) -> None:
    view = only_view(results)
    assert re.fullmatch(r"job@\w{12}, simulated, layout 1x4", view.title)
    assert [cells[:4] for cells in view.cells] == [
        ("all_gather float32", "ranks 0-3", "2", "64 KiB"),
        ("all_reduce float32", "ranks 0-1", "1", "4 KiB"),
    ]
    assert view.cells[0][4] == "500 us"
    names = [text.partition(":")[0] for text in view.sentences[1:]]
    assert names == ["interference", "contention", "link", "rest"]
    assert view.note == ""


def test_the_page_of_a_replay_has_the_section(results: Path, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    assert main(["report", str(results), "--html", str(html)]) == 0
    text = html.read_text()
    assert '<section id="replay">' in text and "rest: 1.27 ms" in text


def test_time_lines_have_a_lane_for_each_group_and_a_bar_for_each_operation(results: Path) -> None:
    in_job, here = only_view(results).pictures
    assert (in_job.title, here.title) == ("in the job", "each alone, here")
    assert in_job.svg.count('class="bar"') == 4
    for text in ("ranks 0-3", "ranks 0-1", "ranks 2-3"):
        assert f">{text}</text>" in in_job.svg
    assert "all_gather of 64 KiB, ranks 0-3: 500 us at 2.00 ms" in in_job.svg
    assert [name for name, _, _ in in_job.legend] == ["all_gather", "all_reduce"]


def test_operations_that_run_at_once_in_a_group_lie_below_one_another() -> None:
    values = {"ranks": "4", "params": "64", "layers": "2", "hidden": "4"}
    part = scaled(generate("tp_dp", values), 4)
    durations_s = {number: 1e-3 * (1 + number // 2) for number in part.operations}
    svg = time_line("t", "here", part, durations_s).svg
    # 2 x 4 of activations a group and 2 x 1 of gradients
    assert svg.count('class="bar"') == 2 * 8 + 2 * 2


def test_a_workload_that_is_gone_is_said(results: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "moved"
    for record in results.glob("*/*/run.json"):
        shutil.copytree(record.parent, elsewhere / record.parent.name)
        copied = elsewhere / record.parent.name / record.name
        copied.write_text(record.read_text().replace(str(results), str(tmp_path / "gone")))
    view = only_view(elsewhere)
    assert view.pictures == () and "workload file is not where" in view.note
