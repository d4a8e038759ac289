"""`commbench show`, `plan=true`, sweeps and finished runs: what a person reads without measuring
again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from generated_results import with_column

import commbench
from commbench.cli.jobs import Ended, Sweep, job_titles
from commbench.cli.main import main
from commbench.config.compose import ConfigComposer
from commbench.config.experiments import requested_jobs
from commbench.config.keys import NO_STAGE
from commbench.core.terminal import TERMINAL

LARGE_PLAN_S = 1.0  # of processor time, once everything is imported

FIXED = (
    "timing=fixed",
    "timing.repetitions=8",
    "timing.warmup_s=0",
    "benchmark=all_reduce",
    "sizes=[8,1KiB]",
)
SIZES = [["8", "B"], ["1", "KiB"]]  # as cells


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commbench.run(
        "backend=simulated", *FIXED, f"output={tmp_path_factory.mktemp('results')}"
    )


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    capsys.readouterr()
    status = main(list(words))
    return status, capsys.readouterr().out.splitlines()


def test_an_old_run_is_printed_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = run_command(capsys, "show", str(run))
    assert status == 0 and lines[0].startswith("simulated (")
    assert [line.split()[1:3] for line in lines if line.startswith("all_reduce")] == SIZES
    assert f"results: {run}" in lines


@pytest.mark.parametrize(
    ("form", "begin"),
    [("osu", "# measured by"), ("nccl_tests", "# measured by")],
)
def test_it_has_the_forms_of_other_tools(
    run: Path, capsys: pytest.CaptureFixture[str], form: str, begin: str
) -> None:
    status, lines = run_command(capsys, "show", str(run), "--as", form)
    assert status == 0 and lines[0].startswith(begin)
    assert any("1024" in line and not line.startswith("#") for line in lines)


def test_the_report_of_one_backend_has_its_table(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines = run_command(capsys, "report", str(run))
    assert status == 0
    assert [line.split()[1:3] for line in lines if line.startswith("all_reduce ")][:2] == SIZES


def test_a_finished_run_is_not_measured_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "run.json").read_text()
    status, lines = run_command(capsys, "resume", str(run))
    assert (status, lines[-1]) == (
        0,
        f"{run} is finished: no case is missing or failed, nothing was measured",
    )
    assert any(line.startswith("all_reduce") for line in lines)
    assert (run / "run.json").read_text() == before


def test_a_line_about_a_folder_is_safe_for_a_terminal(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "a\x1b[31m"
    shutil.copytree(run, copy)
    status, lines = run_command(capsys, "resume", str(copy))
    assert status == 0 and "\x1b" not in "".join(lines)
    assert lines[-1].startswith(f"{tmp_path}/a\\x1b[31m is finished")


def test_a_resumed_run_shows_all_its_cases(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = commbench.run("backend=simulated", *FIXED, f"output={tmp_path}", "budget.total_s=1e-9")
    assert set(commbench.load(first).status) == {"skipped"}
    (part,) = first.glob("cases.parquet")
    record = (first / "run.json").read_text()
    half = commbench.load(first).case_id[0]
    import pyarrow.compute as pc

    table = pq.read_table(part)
    pq.write_table(table.filter(pc.equal(table["case_id"], half)), part)
    (first / "run.json").write_text(record.replace('"status": "done"', '"status": "interrupted"'))
    capsys.readouterr()
    status, lines = run_command(capsys, "resume", str(first), "--force")
    assert status == 0
    assert len([line for line in lines if line.startswith("all_reduce")]) == 2


def test_several_backends_stand_side_by_side(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.json").write_text((run / "run.json").read_text())
    pq.write_table(
        with_column(pq.read_table(run / "cases.parquet"), "backend", "gloo"),
        other / "cases.parquet",
    )
    status, lines = run_command(capsys, "show", str(run), str(other))
    assert status == 0
    heads = lines[1].split()
    assert heads[0] == "all_reduce" and {"gloo", "simulated", "±", "busbw"} <= set(heads)
    assert [line.split()[:2] for line in lines[2:4]] == SIZES
    assert f"show {run} {other}" in lines[-1]
    _, both = run_command(capsys, "show", str(run), str(other), "--flags")
    assert sum(line.startswith("results: ") for line in both) == 2, "one table a run"


def test_the_streams_of_a_sweep_have_one_table_and_their_intervals_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("backend=tcp", "benchmark=stream", "timing=soak", "timing.duration_s=0.3")
    axes = ("layout=1x2", "sizes=[4KiB],[64KiB]", "bind=none")
    status, swept = run_command(capsys, "-m", *words, *axes, f"output={tmp_path}")
    _, shown = run_command(capsys, "show", str(tmp_path))
    assert status == 0
    for lines in (swept, shown):
        rows = [line for line in lines if line.startswith(("4 KiB ", "64 KiB "))]
        assert len(rows) == 2
        assert sum("at the end" in line for line in lines) == 1 + 1, "a table, and its meaning"
        assert sum("initial window" in line for line in lines) == 1
        assert not any("Cwnd" in line for line in lines)
    _, every = run_command(capsys, "show", str(tmp_path), "--intervals")
    assert sum("Cwnd" in line for line in every) == 2


def test_a_reader_that_has_seen_enough_is_no_error(run: Path) -> None:
    script = f"set -o pipefail; {sys.executable} -m commbench show {run} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_without_runs_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(tmp_path)]) == 2
    assert (
        capsys.readouterr().err
        == f"commbench: no run.json below {tmp_path}; give the folder of a run or of several\n"
    )


# ---------------------------------------------------------------- plans and sweeps


def test_a_plan_is_sorted_and_shows_what_varies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TERMINAL, "100")
    words = (
        "backend=simulated",
        "benchmark=[p2p_latency,all_reduce]",
        "sizes=[1MiB,8]",
        "in_place=[true,false]",
    )
    status, lines = run_command(capsys, *words, "layout=[1x4,1x2]", "plan=true")
    assert status == 0 and max(map(len, lines)) <= 100
    assert lines[0].split()[:4] == ["benchmark", "layout", "pair", "in_place"]
    assert lines[-2] == "every case: dtype float32"
    cells = [line.split() for line in lines[1:-2]]
    assert [row[:2] for row in cells[:8]] == [["all_reduce", "1x2"]] * 4 + [
        ["all_reduce", "1x4"]
    ] * 4
    assert [row[3] for row in cells[:4]] == ["8", "8", "1", "1"] and cells[2][4] == "MiB"
    assert lines[-1].startswith("simulated, timing default: 16 cases, 16 to measure, about ")


def test_fixed_repetitions_take_from_their_setup_to_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("backend=simulated", "timing=fixed", "sizes=[8]", "layout=1x2", "plan=true")
    status, lines = run_command(capsys, *words, "benchmark=p2p_latency")
    assert status == 0 and lines[0].endswith(" about")
    assert lines[1].endswith(" 367 ms to 13 min")
    assert lines[-1].endswith("1 to measure, about 367 ms to 13 min; nothing was started")


def test_a_plan_of_thousands_of_ranks_is_read_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("backend=mpi", "layout=64x64", "pairs=all", "schedule=rounds", "sizes=[8,1MiB]")
    begin_s = time.process_time()
    status, lines = run_command(capsys, *words, "budget.memory_share=1", "plan=true")
    assert time.process_time() - begin_s < 5 * LARGE_PLAN_S
    assert status == 2 and max(map(len, lines)) <= 110
    latency = [line.split() for line in lines if line.startswith("p2p_latency")]
    assert [" ".join(line[1:11]) for line in latency] == [
        "0-0 .. 2046-2045 (at most 4096 at once) 8 B",
        "0-0 .. 2046-2045 (at most 4096 at once) 1 MiB",
    ]
    assert [line[11] for line in latency] == ["8,191", "8,191"]
    text = " ".join(" ".join(lines).split())
    assert "a run of this plan is refused: pairs=all makes 33554432 cases here, at most" in text
    assert "mpi, timing default: 32,766 cases (67,108,864 pairs), " in text
    assert lines[-1] == "it can't start here: layout=64x64 needs 64 nodes, this is one machine"


@pytest.mark.parametrize(
    ("words", "here", "status"),
    [
        (("backend=simulated",), True, 0),
        (("backend=gloo", "layout=2x8"), False, 2),
        (("backend=gloo", "layout=2x1", "launcher=ssh", "launcher.hosts=[a,b]"), False, 0),
    ],
)
def test_only_the_plan_of_this_machine_leaves_out_what_its_memory_lacks(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], here: bool, status: int
) -> None:
    more = ("benchmark=all_to_all", "sizes=[8TiB]", "plan=true")
    seen, lines = run_command(capsys, *words, *more)
    text = "\n".join(lines)
    assert ("1 case, 0 to measure" in text, "1 case, 1 to measure" in text) == (here, not here)
    assert seen == status and ("memory is not checked" in text) is not here


def test_a_plan_says_that_its_launcher_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, lines = run_command(capsys, "launcher=srun", "sizes=[8]", "plan=true")
    assert status == 2
    assert lines[-1].startswith("it can't start here: launcher=srun: there is no srun here; ")


def test_a_plan_names_each_reason_once_and_marks_its_cases(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("backend=gloo", "benchmark=[p2p_latency,all_reduce]", "sizes=[8]", "pairs=all")
    status, lines = run_command(capsys, *words, "layout=1x3", "root=[7]", "plan=true")
    assert status == 0
    assert [line.split()[1:4] + line.split()[-1:] for line in lines if line.startswith("p2p")] == [
        ["0-0", "..", "2-2", "skipped"],
        ["0-1", "..", "2-1", "s"],
    ]
    assert "skipped: gloo can't send a message to the same rank" in lines
    status, lines = run_command(
        capsys, "backend=tcp", "benchmark=[all_reduce,p2p_latency]", "pairs=[[0,7]]", "plan=true"
    )
    marks = [line for line in lines if line.endswith(("skipped (1)", "skipped (2)"))]
    assert len(marks) > 1 and sum(line.startswith("skipped (2): ") for line in lines) == 1


def test_a_plan_shows_whose_memory_messages_have(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "backend=simulated",
        "benchmark=p2p_bandwidth",
        "buffers=[shared,own]",
        "sizes=[8]",
        "plan=true",
    )
    status, lines = run_command(capsys, *words)
    assert status == 0 and "buffers" in lines[0].split()
    assert [{"own", "shared"} & set(line.split()) for line in lines[1:3]] == [{"own"}, {"shared"}]


def test_the_parts_of_an_experiment_say_in_what_they_differ() -> None:
    with ConfigComposer() as composer:
        jobs = requested_jobs(
            composer, ["experiment=ec2_streams", "scale=cpu"], multirun=False
        ).jobs
    titles = job_titles(jobs)
    assert len(set(titles)) == len(jobs) > 1
    for number, title in enumerate(titles, start=1):
        begin, _, words = title.partition(": ")
        assert begin == f"job {number}/{len(jobs)}" and "=" in words and "part=" not in words
        assert all(
            sum(word in other.split() for other in titles) < len(jobs) for word in words.split()
        )


def test_a_sweep_names_its_jobs_and_ends_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "-m",
        "backend=simulated",
        "backend.model.corrupt_rank=null,1",
        "layout=1x2,1x3",
        *FIXED,
    )
    status, lines = run_command(capsys, *words, f"output={tmp_path}")
    assert status == 1
    titles = [line for line in lines if line.startswith("job ") and "/4: " in line]
    assert [title.split(":")[0] for title in titles] == [
        f"job {number}/4" for number in range(1, 5)
    ]
    assert all("backend.model.corrupt_rank=" in title and "layout=" in title for title in titles)
    at = lines.index("4 jobs, 2 not ok")
    heads = ["job", "backend.model.corrupt_rank", "layout", "exit", "ok", "invalid", "results"]
    assert lines[at + 1].split() == heads
    rows = [line.split() for line in lines[at + 2 : at + 6]]
    assert sorted(row[1:4] for row in rows) == [
        ["1", "1x2", "1"], ["1", "1x3", "1"], ["null", "1x2", "0"], ["null", "1x3", "0"],
    ]  # fmt: skip
    assert len({Path(row[-1]) for row in rows if Path(row[-1]).is_dir()}) == 4
    assert (
        sum(
            line.startswith("job ") and ") ended with 1: cases failed" in line
            for line in lines[at:]
        )
        == 2
    )


def test_an_override_with_one_value_is_named_once_below_the_table_of_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part 1 has streams, the parts 2 and 3 have a library; only their layouts tell them apart."""
    overrides = [
        ["layout=1x2", "streams=4"],
        ["layout=1x3", "backend.library=openmpi"],
        ["layout=1x4", "backend.library=openmpi"],
    ]
    settings = SimpleNamespace(stage=NO_STAGE)
    jobs = [SimpleNamespace(overrides=words, settings=settings) for words in overrides]
    sweep = Sweep(cast(Any, jobs), task=lambda: 0)
    ended = {number: Ended(0, None) for number in range(len(jobs))}
    monkeypatch.setattr(sweep, "_ended", ended)
    sweep.print_table()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["job", "layout", "exit", "ok"]
    assert [line.split() for line in lines[2:5]] == [
        ["1", "1x2", "0"],
        ["2", "1x3", "0"],
        ["3", "1x4", "0"],
    ]
    assert lines[5:] == ["job 1: streams=4", "jobs 2, 3: backend.library=openmpi"]
