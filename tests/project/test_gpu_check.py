"""`make gpu-check` on a machine without a GPU: its limits, what it packs, its command lines, and
how it judges what one GPU has given."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from generated_results import run_of, with_column
from loops import for_each
from places import DATA, HOST_GPU, ROOT, TOOLS
from shown_gpus import hgx, shown, shown_to_cupy

from commbench.config.compose import ConfigComposer
from commbench.core.errors import ConfigError
from commbench.measure.plan import duration_s, plan
from commbench.measure.plan_facts import PlanFacts
from commbench.runtime.control import hosted_world

sys.path.insert(0, str(TOOLS / "gpu"))

import judge
import symmetric_by_hand
from machine import environment, gpu_count, removed
from part import NEWER_NCCL, Part
from parts import CALLS

TOOL = TOOLS / "gpu"
EVIDENCE = DATA / "gpu_h200"
MAKE = ("make", "--no-print-directory", "gpu-check")
START_S = 10.0  # of a world on GPUs, until its first case
START_ON_H200_S = 4.0
LIMIT_S = 60


def _program() -> ModuleType:
    spec = spec_from_file_location("gpu_check", TOOL / "__main__.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu_check = _program()
ALL = {f"{call} {part.name}": part for call, parts in CALLS.items() for part in parts}


def words_of(part: Part) -> list[str] | None:
    """The words of commbench in the part's command; None if it runs something else."""
    if part.name.startswith("job_"):
        return None
    command = part.command.rpartition("; ")[2] if part.name == "memory_full" else part.command
    words = shlex.split(command)
    if "commbench" not in words or "doctor" in words:
        return None
    return words[words.index("commbench") + 1 :]


COMMANDS = [name for name, part in ALL.items() if words_of(part) is not None]
REFUSED_AT_THE_DOOR = ("2 refused_graph_on_cpu",)
REFUSED = ("2 refused_ipc_off", "2 refused_mpi_ipc_on", "2 refused_mpi_staging_none")


# ---------------------------------------------------------------- running parts


def test_a_part_that_hangs_costs_its_own_limit_only(tmp_path: Path) -> None:
    parts = [
        Part("deaf", "trap '' TERM; sleep 60 & wait; sleep 60", 0.5),
        Part("good", "echo seen; echo said >&2", 10),
        Part("bad", "exit 7", 10),
    ]
    begin_s = time.monotonic()
    gpu_check.run(parts, tmp_path / "out", None, 60.0)
    assert time.monotonic() - begin_s < 20
    lines = (tmp_path / "out" / "table.txt").read_text().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["time limit", "exit 0", "exit 7"]
    assert (tmp_path / "out" / "good" / "stdout.txt").read_text() == "seen\n"
    assert (tmp_path / "out" / "good" / "stderr.txt").read_text() == "said\n"


def test_no_part_starts_when_the_time_is_used_up(tmp_path: Path) -> None:
    parts = [Part("first", "sleep 1.2", 10), Part("second", "true", 10)]
    gpu_check.run(parts, tmp_path, None, gpu_check.LEAST_S + 1.0)
    lines = (tmp_path / "table.txt").read_text().splitlines()
    assert lines[1].split() == ["no", "time", "left", "second"]


def test_the_archive_is_whole_after_each_part_and_leaves_large_files_out(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    count = (
        f"{sys.executable} -c \"import tarfile; print(len(tarfile.open('{archive}').getnames()))\""
    )
    large = f"head -c {gpu_check.MOST_BYTES} /dev/zero > large"
    gpu_check.run(
        [Part("large", large, 10), Part("count", count, 10)], tmp_path / "out", archive, 60
    )
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert "gpu-check/large/command.txt" in names and "gpu-check/large/large" not in names
    assert not [name for name in names if "/site/" in name]
    assert int((tmp_path / "out" / "count" / "stdout.txt").read_text()) > 0


def test_parts_beside_each_other_run_at_the_same_time(tmp_path: Path) -> None:
    meet = "touch ../{0}.here; until test -e ../{1}.here; do sleep 0.05; done"
    parts = [
        Part("one", meet.format("one", "two"), 20),
        Part("two", meet.format("two", "one"), 20, beside=True),
    ]
    gpu_check.run(parts, tmp_path, None, 60)
    assert (tmp_path / "table.txt").read_text().count("exit 0") == 2


def test_the_time_of_a_call_holds_for_parts_that_ignore_signals(tmp_path: Path) -> None:
    deaf = Part("deaf", "trap '' TERM; sleep 60 & wait; sleep 60", 60)
    begin_s = time.monotonic()
    gpu_check.run([deaf], tmp_path, None, gpu_check.LEAST_S + 1.0)
    assert time.monotonic() - begin_s <= gpu_check.LEAST_S + 1.0 + 1.0


def test_processes_share_the_gpu_at_once_in_the_groups_that_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of their parts; a stand-in writes how NVIDIA's program is called."""
    control = tmp_path / gpu_check.MPS_CONTROL
    control.write_text(f'#!/bin/sh\necho "$* $(cat)" >> {tmp_path}/calls\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(gpu_check.MPS, "CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipes"))
    seen = 'echo "$CUDA_MPS_PIPE_DIRECTORY"'
    parts = [
        Part("alone", seen, 10),
        Part("hangs", "sleep 60", 0.5, mps=True),
        Part("beside", seen, 10, beside=True, mps=True),
        Part("last", "true", 10, mps=True),
    ]
    gpu_check.run(parts, tmp_path / "out", None, 60)
    assert (tmp_path / "calls").read_text().splitlines() == ["-d ", " quit -t 2"] * 2
    assert (tmp_path / "out" / "alone" / "stdout.txt").read_text() == "\n"
    pipes = (tmp_path / "out" / "beside" / "stdout.txt").read_text()
    assert pipes.strip() == str(tmp_path / "pipes")


@pytest.mark.parametrize(
    ("gpu", "names"), [("NVIDIA H200", ["new"]), ("NVIDIA H100 80GB HBM3", ["new", "again"])]
)
def test_what_was_measured_on_such_a_gpu_is_left_out(gpu: str, names: list[str]) -> None:
    parts = [Part("new", "true", 1), Part("again", "true", 1, measured_on="H200")]
    assert [part.name for part in gpu_check.needed(parts, gpu)] == names


def test_a_rank_is_killed_once_its_run_names_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(gpu_check, "RANK_RUNS_S", 0.2)
    script = (
        "import json, os, pathlib, time; folder = pathlib.Path('results/one');"
        " folder.mkdir(parents=True); processes = {str(os.getpid()): 'rank 1'};"
        " (folder / 'run.json').write_text(json.dumps({'processes': processes})); time.sleep(30)"
    )
    part = Part("killed", f'exec {sys.executable} -c "{script}"', 20, kills=1)
    gpu_check.run([part], tmp_path, None, 60)
    assert "exit -9" in (tmp_path / "table.txt").read_text()


@pytest.mark.skipif(isinstance(gpu_count(), int), reason="there is a GPU here")
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_without_a_gpu_it_says_why_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MAKE, f"PYTHON={sys.executable}", f"GPU_CHECK_DIR={tmp_path / 'out'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1 and lines[0].startswith("gpu-check: libcuda.so.1 was not found")


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"unknown parts: nosuch; allowed: survey, "):
        gpu_check.main(["--only", "nosuch", "--list"])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_takes_call_and_folder_from_its_command_line_only() -> None:
    """OUT, CALL and the like are exported by other build systems."""

    def command(*words: str, **env: str) -> str:
        done = subprocess.run(
            [*MAKE, "--dry-run", "PYTHON=python3", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, **env},
        )
        return done.stdout.strip()

    exported = {"OUT": "/build", "GPU_CHECK_DIR": "/build", "CALL": "7"}
    assert command(**exported) == "python3 tools/gpu --call 1 gpu-check"
    chosen = ("CALL=2", "GPU_CHECK_DIR=/evidence")
    assert command(*chosen, **exported) == "python3 tools/gpu --call 2 /evidence"


def test_variables_that_change_what_a_part_sees_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiling = ["NCCL_DEBUG_FILE", "NCCL_P2P_DISABLE", "RANK", "SLURM_PROCID"]
    for name in (*spoiling, "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    known = environment()
    assert not known.keys() & {*spoiling} and set(spoiling) <= set(removed())
    assert known["NCCL_SOCKET_IFNAME"] == known["CUDA_VISIBLE_DEVICES"] == "1"


# ---------------------------------------------------------------- the parts


@for_each("name", COMMANDS)
def test_every_command_line_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are to be refused are; the others have cases, and time for them."""
    monkeypatch.syspath_prepend(str(TOOL / "plugins"))
    words = words_of(ALL[name])
    assert words is not None
    if name in REFUSED_AT_THE_DOOR:
        with pytest.raises(ConfigError):
            planned_s(words)
        return
    expected_s = planned_s(words)
    if name in REFUSED:
        assert expected_s is None
    elif ALL[name].kills is None and not name.startswith("2 refused"):
        assert expected_s is not None and expected_s <= ALL[name].limit_s, expected_s


def planned_s(words: list[str], start_s: float = START_S) -> float | None:
    """The time that commbench expects of the jobs; None if all their cases are skipped."""
    is_sweep = words[0] == "-m"
    words = words[1:] if is_sweep else words
    folder = words[1] if words[0] == "--config-dir" else None
    expected_s = []
    with ConfigComposer(folder) as composer:
        for job in composer.jobs(words[2:] if folder else words, multirun=is_sweep):
            size = max(layout.size for layout in job.settings.layouts)
            facts = PlanFacts(2**42, 2**26, cores=64, gpu_bytes=2**40, gpus=8)
            cases = plan(job.settings, hosted_world(1, size)[0], facts)
            if any(case.skip is None for case in cases):
                expected_s.append(start_s + sum(duration_s(job.settings, case) for case in cases))
    return sum(expected_s) if expected_s else None


def test_names_are_unique_within_a_call() -> None:
    for parts in CALLS.values():
        names = [part.name for part in parts]
        assert len(set(names)) == len(names)


def test_parts_with_several_ranks_on_one_gpu_ask_for_it() -> None:
    for call in ("2", "3"):
        for part in CALLS[call]:
            is_shared = re.search(r"layout=1x[23]", part.command)
            if is_shared and re.search("backend=(nccl|symm_mem)", part.command):
                assert part.env["LD_PRELOAD"] == NEWER_NCCL
                assert call == "2" or part.mps
            if "backend=symm_mem" in part.command:
                assert part.env["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] == "1"


def test_the_parts_of_the_third_call_end_in_time() -> None:
    """As long as commbench expects its own to take, and the limits of the others, of which most
    take less: a tenth more fits."""
    taken_s = {
        part.name: part.limit_s
        if (words := words_of(part)) is None
        else planned_s(words, START_ON_H200_S) or 0.0
        for part in CALLS["3"]
    }
    groups = gpu_check.grouped(CALLS["3"])
    on_another_gpu_s = sum(max(taken_s[part.name] for part in group) for group in groups)
    needed = gpu_check.grouped(gpu_check.needed(CALLS["3"], "NVIDIA H200"))
    in_all_s = sum(max(taken_s[part.name] for part in group) for group in needed)
    assert in_all_s < on_another_gpu_s
    assert in_all_s <= 1.1 * gpu_check.TOTAL_S["3"], taken_s


def test_the_part_of_symmetric_memory_measures_each_algorithm_on_a_stand_in(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    words = [word for word in words_of(ALL["3 symm_mem"]) or () if word != "output=results"]
    words[words.index("backend=symm_mem")] = "backend=host_symm_mem"
    stand_in = ("--config-dir", str(HOST_GPU / "conf"), "allow=[host_symm_mem]")
    run = world("commbench", *stand_in, *words, env=shown(tmp_path, hgx(2), HOST_GPU))
    assert (run.cases.status == "ok").all() and (run.cases.wrong_elements == 0).all()
    assert set(run.cases.algorithm) == {"one_shot", "two_shot", "multimem"}
    assert set(run.cases.timer) == {"host_sync", "graph"} and len(run.cases) == 18


@pytest.mark.parametrize("name", ["clocks", pytest.param("lifetime", marks=pytest.mark.long)])
def test_a_probe_runs_to_its_end(name: str, tmp_path: Path) -> None:
    """On stand-ins for CuPy and NCCL; its times are not judged here."""
    known = environment()
    stand_ins = shown_to_cupy(tmp_path, 1)
    path = os.pathsep.join([stand_ins["PYTHONPATH"], known["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, TOOL / "probes" / f"{name}.py", "cupy"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**known, **stand_ins, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["library"] == "cupy"


# ---------------------------------------------------------------- judging


def test_what_one_gpu_gave_agrees_with_c_and_with_a_loop_by_hand() -> None:
    """An H200: 85 of 88 times agree. The others: Python's half of a 16 MiB copy, a graph of such
    copies that is 3.2 % off, and a loop by hand whose speed changed between launches."""
    comparisons = judge.judged(EVIDENCE)
    differing = [one for one in comparisons if not one.agrees]
    assert len(comparisons) == 88
    assert {one.key for one in differing} == {
        ("p2p_latency", "host_sync", 1 << 20),
        ("copy_d2d", "graph", 16 << 20),
        ("copy_d2d", "host_sync", 16 << 20),
    }
    by_part = {one.part for one in comparisons}
    assert by_part == {"clock", "nccl", "cupy_nccl", "cuda_copy", "ipc 0-0", "ipc 0-1"}


@pytest.mark.parametrize(
    ("bound", "measured_us", "agrees"),
    [
        ("events", 106.0, True),
        ("events", 107.0, False),
        ("copies", 102.9, True),
        ("copies", 96.9, False),
        ("torch", 112.9, True),
        ("torch", 87.1, True),
        ("torch", 86.9, False),
        ("clock", 102.1, False),
    ],
)
def test_bounds_are_a_share_and_a_constant(bound: str, measured_us: float, agrees: bool) -> None:
    one = judge.Comparison("nccl", ("all_gather", "graph", 8), measured_us, "C++", 100.0, bound)
    assert one.agrees is agrees
    assert str(replace(one, reference="torch")).startswith("ok " if agrees else "differs ")


TRUTH_US = {8: 10.0, 16 << 20: 100.0}


@for_each(
    ["timer", "message_bytes", "us", "agrees"],
    [
        ("throughput", 16 << 20, 101.9, True),
        ("throughput", 16 << 20, 102.1, False),
        ("graph", 16 << 20, 97.9, False),
        ("throughput", 8, 11.4, True),
        ("graph", 8, 11.6, False),
    ],
)
def test_two_ranks_agree_within_2_percent_and_short_messages_within_5_and_1_us(
    timer: str, message_bytes: int, us: float, agrees: bool
) -> None:
    with TemporaryDirectory() as folder:
        plant_truth(Path(folder), "truth_windows", ("loop", "graph"), "all_reduce symmetric")
        changes = {"registration": "symmetric", "timer": timer, "message_bytes": message_bytes}
        plant_rows(Path(folder), "registration", us, benchmark="all_reduce", **changes)
        (one,) = judge.judged(Path(folder))
    assert (one.part, one.reference_us) == ("symmetric", TRUTH_US[message_bytes])
    assert one.agrees is agrees


@for_each(
    ["timer", "us", "agrees"],
    [
        ("host_sync", 13.9, True),
        ("host_sync", 14.1, False),
        ("graph", 11.4, True),
        ("graph", 12, False),
    ],
)
def test_symmetric_memory_is_compared_by_algorithm(timer: str, us: float, agrees: bool) -> None:
    with TemporaryDirectory() as folder:
        modes = ("host_sync", "graph")
        plant_truth(Path(folder), "symmetric_by_hand", modes, "all_reduce one_shot")
        changes = {"algorithm": "one_shot", "timer": timer, "message_bytes": 8}
        plant_rows(Path(folder), "symm_mem", us, benchmark="all_reduce", **changes)
        (one,) = judge.judged(Path(folder))
    assert (one.part, one.reference_us, one.agrees) == ("one_shot", TRUTH_US[8], agrees)


def test_the_loop_by_hand_gives_torch_the_arguments_that_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each algorithm; the calls themselves need GPUs."""
    memory = SimpleNamespace(empty=torch.empty, rendezvous=lambda *_: None)
    monkeypatch.setattr(symmetric_by_hand, "import_module", lambda _: memory)
    calls = symmetric_by_hand.calls(8, "0", torch.device("cpu"))
    assert {*calls} == {*judge.ALGORITHMS}
    for call in calls.values():
        assert len(call.args) == len(call.func.default._schema.arguments)


@for_each(
    ["until", "us", "agrees"],
    [("open", 11.4, True), ("open", 11.6, False), ("first_call", 10, None)],
)
def test_opening_communicators_is_compared_by_what_it_waits_for(
    until: str, us: float, agrees: bool | None
) -> None:
    with TemporaryDirectory() as folder:
        plant_truth(Path(folder), "truth_init", ("host_sync",), "communicator_init open")
        changes = {"until": until, "timer": "host_sync", "message_bytes": 8}
        plant_rows(Path(folder), "communicators", us, benchmark="communicator_init", **changes)
        found = [one.agrees for one in judge.judged(Path(folder))]
    assert found == [] if agrees is None else [agrees]


def plant_truth(folder: Path, name: str, modes: tuple[str, ...], what: str) -> None:
    (folder / name).mkdir()
    rows = [
        {"what": what, "mode": mode, "bytes": message_bytes, "median_us": us}
        for mode in modes
        for message_bytes, us in TRUTH_US.items()
    ]
    (folder / name / "stdout.txt").write_text("\n".join(map(json.dumps, rows)))


def plant_rows(folder: Path, name: str, us: float, **changes: Any) -> None:
    """A run of one row."""
    run = run_of(folder / name / "results", 0)
    table = pq.read_table(run / "cases.parquet").slice(0, 1)
    for column, value in {**changes, "median_s": us / 1e6, "status": "ok"}.items():
        table = with_column(table, column, value)
    pq.write_table(table, run / "cases.parquet")


@pytest.mark.long
def test_a_small_training_job_is_recorded_replayed_and_compared(tmp_path: Path) -> None:
    """On gloo, whose times are not judged here."""
    part = tmp_path / "job_ddp"
    part.mkdir()
    known = {**environment(), "OMP_NUM_THREADS": "1"}
    torchrun = [*(sys.executable, "-m", "torch.distributed.run"), "--standalone"]
    probe = [TOOL / "probes" / "training.py", "ddp", "recorded", "cpu"]
    on = "backend=gloo layout=1x2 timing=quick timing.visits=1 budget.case_s=0.3 output=results"
    commands: tuple[list[Any], ...] = (
        [*torchrun, "--nproc-per-node=2", *probe],
        [sys.executable, "-m", "commbench", "replay", "recorded/profile", "--on", on],
        [sys.executable, "-m", "commbench", "replay", "recorded/flight"],
    )
    printed = ""
    for command in commands:
        done = subprocess.run(
            command, cwd=part, env=known, capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, done.stderr[-2000:]
        printed += done.stdout
    (part / "stdout.txt").write_text(printed)
    (step,) = judge.judged(tmp_path)
    assert step.part == "step" and step.measured_us > 0 and step.reference_us > 0


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_the_reference_in_c_compiles_and_names_its_parts(tmp_path: Path) -> None:
    program = tmp_path / "truth"
    words = ["nvcc", "-std=c++17", "-arch=sm_90", "-cudart", "static", "-o", program]
    done = subprocess.run([*words, TOOL / "truth.cu", "-ldl"], timeout=100, capture_output=True)
    assert done.returncode == 0, done.stderr
    asked = subprocess.run([program], timeout=LIMIT_S, capture_output=True, text=True)
    called = {part.command.split()[1] for part in ALL.values() if part.name.startswith("truth_")}
    known = set(asked.stderr.partition("truth ")[2].partition(" ")[0].split("|"))
    assert asked.returncode == 2 and called - {"-x"} <= known


def test_of_several_launches_the_shortest_time_counts(tmp_path: Path) -> None:
    for number, us in enumerate((3.0, 2.0, 4.0)):
        folder = tmp_path / f"by_hand_{number}"
        folder.mkdir()
        row = {"what": "all_gather", "mode": "host_sync", "bytes": 8, "median_us": us}
        (folder / "stdout.txt").write_text(f"torch says hello\n{json.dumps(row)}\n")
    assert judge.printed(tmp_path, "by_hand") == {("all_gather", "host_sync", 8): 2.0}


def test_without_evidence_there_is_nothing_to_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge.main([str(tmp_path)]) == 2
    assert "nothing to compare" in capsys.readouterr().err
