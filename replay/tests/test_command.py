"""`commbench replay`: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from places import TRACES
from trace_writers import Call, write_kineto

from commbench.core.errors import CommbenchError, ConfigError, Unreadable
from commbench_replay.command import replay

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs real traces in {TRACES}")
DLRM = str(TRACES / "kineto_dlrm_v100_8rank_old")


@needs_traces
def test_the_answer_names_the_job_its_signatures_and_the_late_rank(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMBENCH_TERMINAL", "100")
    assert replay([DLRM]) == 0
    out = capsys.readouterr().out
    answer, saving, _more, read = out.splitlines()[:4]
    assert answer == (
        "a step takes 16.1 ms, with 5.86 ms of exposed communication; rank 7 costs 5.08 ms"
    )
    assert saving.startswith("36% of a step is exposed communication; an infinitely fast network")
    assert read.startswith("8 of 8 ranks, torch profiler, 1 step; 64 operations in 7 signatures")
    assert "all_to_all float32  world(8)      2    24 KiB   24 KiB" in out
    assert "waiting  share  exposed" in out
    sentences = " ".join(out.split())
    assert "207 us of it hidden behind computation of the same rank, 5.86 ms exposed" in sentences
    assert "late: rank 7 is last in 5 of 8 operations" in out and "76% of all waiting" in sentences
    commands = [line for line in out.splitlines() if line.startswith("next: ")]
    assert len(commands) == 2, "with the whole path of the trace, however long, to be pasted"
    assert max(len(line) for line in out.splitlines() if line not in commands) <= 100


@needs_traces
def test_other_libraries_stand_under_the_names_of_their_kernels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert replay([str(TRACES / "kineto_vllm_tp8_b200_new")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("the recording has 2.14 ms of exposed communication")
    assert "74 operations in 2 signatures" in out and "<= 22.0" in out
    assert re.search(r"^multimem_all_reduce_kernel +unknown +73 .* 99% ", out, re.M)
    assert "73 collectives are not of the process groups" in out
    assert "job us  share  exposed" in out, "of one rank, waiting is not known"


@needs_traces
def test_every_call_is_a_line_of_the_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay([DLRM, "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 64
    assert rows[0]["group_ranks"] == "0-7" and rows[0]["input_bytes"] == "24576"
    assert int(rows[0]["end_ns"]) - int(rows[0]["start_ns"]) == 2_146_000


@needs_traces
def test_it_starts_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "commbench", "replay", DLRM],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "mpi4py", "numba", "pandas", "pyarrow", "hydra"}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: folder / "missing", "does not exist; name a file"),
        (lambda folder: folder, "is an empty folder"),
        (lambda folder: _written(folder / "a.txt", b"hello"), "no trace that commbench knows"),
        (lambda folder: _written(folder / "a", b"\x1f\x8b" + b"junk" * 99), "can't be read"),
    ],
)
def test_what_is_no_trace_is_refused(
    prepare: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Unreadable, match=message):
        replay([str(prepare(tmp_path))])


def test_a_file_that_exists_is_not_replaced(tmp_path: Path) -> None:
    existing = _written(tmp_path / "x.csv", b"")
    with pytest.raises(ConfigError, match="exists; choose another file"):
        replay(["trace", "--csv", str(existing)])
    assert issubclass(Unreadable, CommbenchError)


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_generated_job_is_a_file_that_the_command_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.json"
    words = ["fsdp", "params=7e9", "layers=32", "ranks=8", "--export", str(path)]
    assert replay(words) == 0
    assert replay([str(path)]) == 0
    out = capsys.readouterr().out
    assert f"workload: {path}" in out
    assert "8 of 8 ranks, commbench workload; 768 operations in 2 signatures, 1 group" in out


def test_no_command_is_offered_that_would_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_kineto([Call("0", (0, 1), "all_reduce", "float32", 8)], tmp_path)
    one = str(tmp_path / "rank0.json")
    silent = tmp_path / "silent.json"
    silent.write_text('{"schemaVersion": 1, "traceEvents": []}')
    for words, reason in (
        ([one], "no --on, --from or --export: 1 of 2 ranks have no trace"),
        ([str(silent)], "no --on, --from or --export: the traces have no communication"),
    ):
        assert replay(words) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert reason in out and "next:" not in out
        with pytest.raises(Unreadable, match=reason.rpartition(": ")[2]):
            replay([*words, "--export", str(tmp_path / "job.json")])
    silent.unlink()
    assert replay([str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("next: commbench replay") == 2


def test_a_job_of_one_rank_can_be_exported_and_not_be_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_kineto([Call("0", (0,), "all_reduce", "float32", 8)], tmp_path)
    assert replay([str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == "no --on: a job of one rank has nothing to replay"
    assert last[1].startswith("next: commbench replay") and "--export" in last[1]


def test_a_job_of_which_nothing_can_be_replayed_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_kineto([Call("0", (0, 1), "all_to_all_v", "int32", 0, ((1, 2), (3, 4)))], tmp_path)
    for path in tmp_path.iterdir():
        cut = re.sub(r'(split size": "\[\d+), \d+', r"\1, ...", path.read_text())
        path.write_text(cut)
    assert replay([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "no --on: all_to_all_v whose counts are not known\nnext: " in out


def test_files_that_are_left_out_are_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_kineto([Call("0", (0, 1), "all_reduce", "float32", 8)], tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "silent.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert replay([str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"not read: {tmp_path}/notes.txt: no trace that commbench knows" in out
    assert f"not read: {tmp_path}/silent.json: without communication, and of no rank" in out


def test_an_exported_job_is_read_back_with_the_same_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    write_kineto([Call("0", (0, 1), "all_reduce", "float32", 8)], traces)
    exported = tmp_path / "job.json"
    assert replay([str(traces), "--export", str(exported)]) == 0
    capsys.readouterr()
    tables = []
    for source in (traces, exported):
        assert replay([str(source), "--csv", "-"]) == 0
        rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
        tables.append([{**row, "start_ns": "", "end_ns": "", "beside_ns": ""} for row in rows])
    assert tables[0] == tables[1] and len(tables[0]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which job"),
        (["ddp", "ranks", "--export", "x"], "ddp: 'ranks' is not KEY=VALUE"),
        (["ddp", "ranks=2", "params=8"], "what of ddp ranks=2 params=8"),
        (["ddp", "ranks=2", "params=8", "--csv", "x"], "has none"),
        (["ddp", "ranks=2", "--export", "x"], "ddp: it needs params"),
        (["ddp", "params=8", "--on", ""], "ddp: it needs ranks"),
        (["ddp", "params=8", "--on", "layout=[1x2,1x4]"], "ddp: it needs ranks"),
        (["trace", "--inject", "rank=1:400us"], "add --on OVERRIDES"),
        (["trace", "--inject", "1:400us", "--on", ""], "write it like rank=3:400us"),
        (["trace", "--inject", "rank=1:1ms", "--on", "late=0:1ms"], "leave one out"),
        (["trace", "--csv", "-", "--on", ""], "nothing else; name a file beside --on"),
        (["ddp", "--export", "/missing/job.json"], "there is no folder /missing"),
    ],
)
def test_what_the_command_needs_is_said(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replay(words)
