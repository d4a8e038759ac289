"""`commbench replay ... --on`: a workload measured here, and the answer."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from commbench.cli.main import main
from commbench.results.load import load
from commbench_replay.command import workload_here
from commbench_replay.generators import generate
from commbench_replay.workload_file import parse_workload, workload_text

SIMULATED = "backend=simulated layout=1x4 timing=quick timing.pass_s=0"
TIMED = """{"format": "commbench workload", "version": 1,
"ranks": 4, "steps": 2, "step_s": 0.02, "unknown": [],
"groups": [[0,1,2,3]],
"operations": [
{"group":0,"operation":"all_reduce","dtype":"float32","input_bytes":[65536],
 "output_bytes":[65536],"job_s":0.0005}
],
"orders": [{"ranks":[0,1,2,3],"calls":[[0,0.002,0],[0,0.003,0]]}]}"""


@pytest.fixture
def workload_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.json"
    path.write_text(TIMED)
    return path


def test_a_workload_is_measured_with_its_gaps_and_the_answer_names_each_cause(
    workload_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    on = f"{SIMULATED} output='{tmp_path / 'results'}'"
    assert main(["replay", str(workload_file), "--on", on]) == 0
    out = capfd.readouterr().out
    assert out.startswith("a step: 20.0 ms, communication without waiting 500 us\n")
    frame = load(tmp_path / "results")
    assert set(frame["gaps"].dropna()) == {"none", "sleep", "matmul"}
    assert list(frame["status"].unique()) == ["ok"]
    answer = out.partition("simulated, layout 1x4: a step takes")[2]
    words = " ".join(answer.split())
    assert re.match(r".* here, communication alone .* \(the job: 20.0 ms, communication", words)
    assert all(f"\n{name}: " in answer for name in ("interference", "contention"))
    assert "communication alone is a lower bound" in answer and "\nwaiting" not in answer
    # 5 ms of gaps in two steps, of an operation of some microseconds
    step_s = frame.set_index("gaps").loc["sleep", "median_s"] - 2.5e-3
    assert step_s == pytest.approx(frame.set_index("gaps").loc["none", "median_s"], rel=0.01)
    (stored,) = (tmp_path / "results").glob("*/job.json")
    assert parse_workload(stored.read_text(), "job.json") == workload_here([str(workload_file)])


def test_a_planted_late_rank_is_named_with_what_it_costs_and_files_are_written_too(
    workload_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    on = f"{SIMULATED} gaps=none output='{tmp_path / 'results'}'"
    files = ["--csv", str(tmp_path / "calls.csv"), "--export", str(tmp_path / "copy.json")]
    words = ["replay", str(workload_file), "--on", on, "--inject", "rank=2:400us", *files]
    assert main(words) == 0
    out = capfd.readouterr().out
    # two operations in two steps
    assert re.search(r"^waiting for rank 2: 400 us \(.*\): it begins each", out, re.M), out
    assert len((tmp_path / "calls.csv").read_text().splitlines()) == 1 + 2 * 4
    copy = parse_workload((tmp_path / "copy.json").read_text(), "copy.json")
    assert copy == parse_workload(TIMED, "job.json")


def test_a_late_rank_alone_does_not_say_what_it_costs(
    workload_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    on = f"{SIMULATED} gaps=none late=2:400us output='{tmp_path}'"
    assert main(["replay", str(workload_file), "--on", on]) == 0
    out = capfd.readouterr().out
    assert "waiting for rank 2: not known, late=null was not measured beside it" in out


def test_a_generated_job_has_the_ranks_of_the_layout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", "ddp", "params=1e5", "--on", f"{SIMULATED} output='{tmp_path}'"]
    assert main(words) == 0
    assert "simulated, layout 1x4: communication alone" in capfd.readouterr().out


def test_fewer_ranks_than_the_job_had_say_what_was_dropped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = generate("tp_dp", {
        "ranks": "8", "params": "1e4", "layers": "1", "hidden": "16", "tokens": "4",
    })  # fmt: skip
    path = tmp_path / "large.json"
    path.write_text(workload_text(whole))
    assert main(["replay", str(path), "--on", f"{SIMULATED} output='{tmp_path}'"]) == 0
    out = capfd.readouterr().out
    assert "4 of the job's 8 ranks" in out
    assert "(the job" not in out


def test_the_time_of_the_job_is_known_only_without_upper_bounds() -> None:
    workload = parse_workload(TIMED, "job.json")
    assert workload.job_s == pytest.approx(0.5e-3)
    bound = parse_workload(TIMED.replace('"job_s":0.0005', '"job_s":0.0005,"is_bound":true'), "x")
    assert bound.job_s is None
    assert generate("ddp", {"ranks": "2", "params": "10"}).job_s is None


def test_a_recording_without_marks_is_not_called_a_step(
    workload_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unmarked = TIMED.replace('"unknown": []', '"unknown": ["steps"]').replace(
        '"steps": 2', '"steps": 1'
    )
    workload_file.write_text(unmarked.replace('"step_s": 0.02', '"step_s": null'))
    on = f"{SIMULATED} output='{tmp_path / 'results'}'"
    assert main(["replay", str(workload_file), "--on", on]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "simulated, layout 1x4: the recording takes" in out and "recording of the job" in out
    assert "a step" not in out and "(the job: communication without waiting 1.00 ms)" in out


def test_traces_are_not_taken_for_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    assert workload_here([str(path)]) is None
    assert workload_here([str(tmp_path)]) is None


def test_a_compressed_workload_is_one_with_its_gaps(workload_file: Path) -> None:
    packed = workload_file.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(workload_file.read_bytes()))
    assert workload_here([str(packed)]) == workload_here([str(workload_file)])
