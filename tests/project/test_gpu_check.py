"""`make gpu-check` on a machine without a GPU: its limits, what it packs, its command lines, and
how it judges what one GPU has given."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from loops import for_each
from places import DATA, ROOT, TOOLS
from shown_gpus import shown_to_cupy

from commbench.config.compose import ConfigComposer
from commbench.core.errors import ConfigError
from commbench.measure.plan import duration_s, plan
from commbench.measure.plan_facts import PlanFacts
from commbench.runtime.control import hosted_world

sys.path.insert(0, str(TOOLS / "gpu"))

import judge
from machine import environment, gpu_count, removed
from parts import CALLS, NEWER_NCCL, Part

TOOL = TOOLS / "gpu"
EVIDENCE = DATA / "gpu_h200"
MAKE = ("make", "--no-print-directory", "gpu-check")
START_S = 10.0  # of a world on GPUs, until its first case
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
    command = part.command.rpartition("; ")[2] if part.name == "memory_full" else part.command
    words = shlex.split(command.partition("&& ")[2].rpartition(";")[0] or command)
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


def planned_s(words: list[str]) -> float | None:
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
                expected_s.append(START_S + sum(duration_s(job.settings, case) for case in cases))
    return sum(expected_s) if expected_s else None


def test_names_are_unique_within_a_call() -> None:
    for parts in CALLS.values():
        names = [part.name for part in parts]
        assert len(set(names)) == len(names)


def test_parts_with_several_ranks_on_one_gpu_ask_for_it() -> None:
    for part in CALLS["2"]:
        if "layout=1x2" in part.command and "'backend=nccl'" in part.command:
            assert part.env["LD_PRELOAD"] == NEWER_NCCL


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
