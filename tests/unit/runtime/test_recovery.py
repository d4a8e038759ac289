"""Runs that go on: what is left of them, who is blamed for their end, and that nothing is measured
twice or lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from processes import until
from small_disk import small_disk

import commbench
from commbench.cli.run import resume
from commbench.core.errors import CommbenchError
from commbench.results.load import find_runs, load_run
from commbench.runtime.recovery import (
    IN_FLIGHT,
    EarlierStarts,
    Resume,
    clear_in_flight,
    count_suspect,
    mark_in_flight,
)

FIXED = (
    "timing=fixed",
    "timing.repetitions=30",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
)
TWO_CASES = ("benchmark=all_reduce", "sizes=[8,64]")
DEADLY = """
import os, signal
from dataclasses import dataclass
from commbench.benchmarks.all_reduce import AllReduce

@dataclass(frozen=True)
class Deadly(AllReduce):
    name = "deadly"

    def fill(self, case, rank, size, name, salt):
        if case.message_bytes == 16 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fill(case, rank, size, name, salt)
"""


# ---------------------------------------------------------------- what is left


def test_cases_that_broke_the_world_or_are_missing_are_left_to_measure() -> None:
    recorded = {
        "good": "ok",
        "planned": "skipped",
        "bad": "failed",
        "wrong": "invalid",
        "suspect": "failed",
    }
    rest = EarlierStarts(Resume.REST, {"broken": {"suspect": 1, "twice": 2}}, recorded)
    assert [case for case in (*recorded, "new", "twice") if rest.unfinished(case, [case])] == [
        "suspect",
        "new",
        "twice",
    ]
    run = {
        "broken": {"twice": 2},
        "starts": [{"reason": "rank 0 has ended"}, {"reason": "rank 1 was killed"}],
    }
    given_up = EarlierStarts(Resume.REST, run, {"twice": "failed"}, {"twice": "rank 1 has ended"})
    assert given_up.unfinished("twice", ["twice"]), "it is to be written down why"
    assert (
        given_up.given_up("twice")
        == "lost its ranks 2 times; it is not tried again; rank 1 has ended"
    )
    without_row = EarlierStarts(Resume.REST, run)
    assert (
        without_row.given_up("twice")
        == "lost its ranks 2 times; it is not tried again; rank 1 was killed"
    )
    known = run | {"broken_reasons": {"twice": "rank 1 was killed by SIGKILL"}}
    by_parent = EarlierStarts(Resume.REST, known, {}, {"twice": "rank 1 has ended"})
    assert (
        by_parent.given_up("twice")
        == "lost its ranks 2 times; it is not tried again; rank 1 was killed by SIGKILL"
    )
    again = EarlierStarts(Resume.RETRY, recorded=recorded)
    assert [case for case in recorded if again.unfinished(case, [case])] == [
        "bad",
        "wrong",
        "suspect",
    ]
    assert rest.unfinished("round", ["good", "new"]), "a round is measured as a whole"
    assert not rest.unfinished("round", ["good", "planned"])


def test_a_case_that_broke_the_world_twice_is_given_up_unless_the_user_asks() -> None:
    once = {"broken": {"a": 1}}
    twice = {"broken": {"a": 2}}
    assert EarlierStarts(Resume.REST, once).given_up("a") is None
    assert (
        EarlierStarts(Resume.REST, twice).given_up("a")
        == "lost its ranks 2 times; it is not tried again"
    )
    assert [EarlierStarts(mode, twice).given_up("a") for mode in (Resume.RETRY, Resume.FORCE)] == [
        None,
        None,
    ]


def test_the_case_in_flight_is_blamed_once(tmp_path: Path) -> None:
    run = {"schema_version": 1, "reason": "rank 1 was killed"}
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert count_suspect(str(tmp_path)) is None
    mark_in_flight(str(tmp_path), "abc", "all_reduce 8 B")
    assert count_suspect(str(tmp_path)) == "all_reduce 8 B"
    assert count_suspect(str(tmp_path)) is None
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["broken"], run["broken_reasons"]) == ({"abc": 1}, {"abc": "rank 1 was killed"})
    mark_in_flight(str(tmp_path), "abc", "all_reduce 8 B")
    clear_in_flight(str(tmp_path))
    assert not (tmp_path / IN_FLIGHT).exists()


# ---------------------------------------------------------------- real worlds


@pytest.mark.long
def test_a_case_that_kills_a_rank_costs_itself_and_nothing_else(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    (tmp_path / "conf" / "benchmark").mkdir(parents=True)
    text = "# @package benchmarks.deadly\n_target_: deadly.Deadly\n"
    (tmp_path / "conf" / "benchmark" / "deadly.yaml").write_text(text)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    extra = (
        "--config-dir",
        str(tmp_path / "conf"),
        "allow=[deadly]",
        "benchmark=[deadly,all_reduce]",
    )
    run = world("commbench", *extra, "sizes=[8,16,24]", *FIXED, env={"PYTHONPATH": path}, status=1)
    cases = run.cases.set_index(["benchmark", "message_bytes"])
    failed = cases[cases.status != "ok"]
    assert list(failed.index) == [("deadly", 16)]
    assert failed.reason.iloc[0].startswith(
        "lost its ranks 2 times; it is not tried again; rank 1 on "
    )
    assert len(cases) == 6
    record = run.record
    assert list(record["broken"].values()) == [2]
    assert [start["status"] for start in record["starts"]] == ["broken", "broken"]
    assert run.stderr.count("fresh ranks measure the remaining cases") == 2


@pytest.mark.long
def test_a_run_that_was_ended_is_finished_by_resume(tmp_path: Path, warm_executable: Path) -> None:
    output = tmp_path / "results"
    words = ["benchmark=all_reduce", "sizes=[8,64,512]", *FIXED, f"output={output}"]
    slow = ("timing.case_s=100", "timing.repetitions=1000")
    with subprocess.Popen(
        [str(warm_executable), "-m", "commbench", *words, *slow], stderr=subprocess.DEVNULL
    ) as process:
        until(lambda: any(output.glob("*/parts/*.cases.parquet")))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    (folder,) = find_runs(output)
    before = commbench.load(folder)
    assert 1 <= len(before) < 3
    again = subprocess.run(
        [str(warm_executable), "-m", "commbench", "resume", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert again.returncode == 0, again.stderr
    cases = commbench.load(folder)
    assert len(cases) == 3 and set(cases.status) == {"ok"}
    kept = cases[cases.launch == 0].case_id
    assert set(kept) == set(before.case_id), "what was measured is not measured again"
    assert set(cases.launch) == {0, 1}
    record = load_run(folder)
    assert (record["status"], [start["status"] for start in record["starts"]]) == (
        "done",
        ["interrupted"],
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the following arguments are required: RUN; see commbench resume --help"),
        (("nowhere",), "has no run.json"),
        (("--what", "."), "unrecognized arguments: --what; see commbench resume --help"),
    ],
)
def test_resume_refuses_in_one_line(
    tmp_path: Path, warm_executable: Path, words: tuple[str, ...], message: str
) -> None:
    done = subprocess.run(
        [str(warm_executable), "-m", "commbench", "resume", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_resume_says_what_has_changed(tmp_path: Path, warm_executable: Path) -> None:
    folder = commbench.run(
        "backend=simulated", "writer=parquet", "sizes=[8]", f"output={tmp_path}", *FIXED
    )
    record = load_run(folder)
    record["provenance"]["nodes"][0]["versions.numpy"] = "0.9"
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "cases.parquet").unlink()  # something is left to measure
    command = [str(warm_executable), "-m", "commbench", "resume", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "versions.numpy: 0.9 then" in done.stderr and "--force" in done.stderr
    assert subprocess.run([*command, "--force"], capture_output=True).returncode == 0
    record["config"]["seed"] = 5
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "cases.parquet").unlink()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "started with other seed" in done.stderr


def test_a_fact_that_could_not_be_read_then_has_not_changed(tmp_path: Path) -> None:
    folder = commbench.run(
        "backend=simulated", "writer=parquet", "sizes=[8]", f"output={tmp_path}", *FIXED
    )
    record = load_run(folder)
    (node,) = record["provenance"]["nodes"]
    node.pop("versions.git_dirty", None)
    node["versions.error"] = "git status did not answer within 2 s"
    del node["host.cpu_model"]
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "cases.parquet").unlink()
    assert resume([str(folder)]) == 0


# ---------------------------------------------------------------- disks that take nothing


def test_a_disk_that_takes_no_word_ends_no_run_and_blames_nobody(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = str(disk.path)
        (disk.path / "run.json").write_text(json.dumps({"schema_version": 1}))
        mark_in_flight(folder, "abc", "all_reduce 8 B")
        disk.fill()
        mark_in_flight(folder, "def", "all_reduce 16 B")
        assert sorted(path.name for path in disk.path.iterdir()) == [
            "ballast",
            "run.json",
        ], "abc is not to blame"
        disk.free()
        mark_in_flight(folder, "ghi", "all_reduce 24 B")
        disk.read_only(True)
        mark_in_flight(folder, "jkl", "all_reduce 32 B")
        clear_in_flight(folder)
        assert count_suspect(folder) is None, "a fresh world could not write either"
    mark_in_flight(folder + "/nowhere", "abc", "all_reduce 8 B")
    assert count_suspect(folder + "/nowhere") is None


def test_resume_refuses_a_run_json_of_somebody_else(tmp_path: Path) -> None:
    folder = commbench.run(
        "backend=simulated", "writer=parquet", "sizes=[8]", f"output={tmp_path}", *FIXED
    )
    run = load_run(folder)
    for key in ("overrides", "layouts", "config", "config_dir"):
        (folder / "run.json").write_text(json.dumps(run | {key: 7}))
        with pytest.raises(CommbenchError, match=key) as refused:
            resume([str(folder)])
        assert "\n" not in str(refused.value)


def test_a_run_that_has_another_name_now_stays_one_run(tmp_path: Path) -> None:
    """Renamed, or by a link; its rows know it by its first name."""
    run = commbench.run("backend=simulated", *TWO_CASES, *FIXED, output=tmp_path / "results")
    [cases] = run.glob("cases.parquet")
    pq.write_table(pq.read_table(cases)[:1], cases)
    (tmp_path / "mine").symlink_to(run.rename(run.with_name("renamed")))
    assert resume([str(tmp_path / "mine")]) == 0
    rows = commbench.load(tmp_path / "mine")
    assert list(rows["message_bytes"]) == [8, 64]
    assert set(rows["run_id"]) == {run.name}


@pytest.mark.long
def test_a_given_world_resumes_and_tells_its_own_status(
    world: Callable[..., Any], warm_executable: Path
) -> None:
    words = ("benchmark=all_reduce", "sizes=[8,64]", "expect='all_reduce:median_s<1e-12'", *FIXED)
    run = world("commbench", *words, status=1)
    (folder,) = find_runs(run.output)
    for part in folder.glob("*.parquet"):
        part.unlink()
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "commbench",
        "resume",
    ]
    again = subprocess.run(
        [str(warm_executable), *torchrun, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 1, again.stderr
    assert "exitcode  : 1" in again.stderr, again.stderr
    assert set(commbench.load(folder).status) == {"ok"}
    assert load_run(folder)["exit_status"] == 1
