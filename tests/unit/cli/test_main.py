"""The command line: what needs no world is quick, imports no torch, and a lost rank never starts
worlds of its own."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from places import BACKENDS, HARDWARE_TEXTS
from shown_gpus import hgx, shown

import commbench
from commbench.__main__ import main
from commbench.cli import main as main_module
from commbench.cli.doctor import doctor as doctor_command
from commbench.cli.doctor import folder_problems, machine_text
from commbench.hardware import machine_facts
from commbench.hardware.topology import parse_topo
from commbench.runtime.exit_protocol import read_ends

pytestmark = pytest.mark.usefixtures("outside_any_world")
SCRIPT = str(Path(sys.executable).parent / "commbench")
CONF = Path(commbench.__file__).parents[1] / "conf"
HEAVY = {"torch", "numba", "mpi4py.MPI", "pandas", "pyarrow"}


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    return subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=60, check=False
    )


@cache
def doctor() -> subprocess.CompletedProcess[str]:
    return command(SCRIPT, "doctor", PYTHONPROFILEIMPORTTIME="1")


def lines_of(doctor_text: str) -> list[str]:
    """A line for each fact, without the line breaks of a long one."""
    return re.sub(r"\n {20,}", " ", doctor_text).splitlines()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--help"], 0),
        (["doctor"], 0),
        (["-m", "backend=gloo,foo", "plan=true"], 2),
        (["plan=true", "layout=2x4"], 2),
    ],
    ids=str,
)
def test_what_needs_no_world_prints_an_answer_or_a_refusal_and_imports_no_torch(
    words: list[str], status: int
) -> None:
    done = doctor() if words == ["doctor"] else command(SCRIPT, *words, PYTHONPROFILEIMPORTTIME="1")
    lines = done.stderr.splitlines()
    imported = {
        line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")
    }
    assert "argparse" in imported  # the listing is what it seems
    assert imported & HEAVY == set()
    messages = [line for line in lines if not line.startswith("import time:")]
    assert done.returncode == status
    assert (messages == []) != (done.stdout == "")


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """called(words): exit status, stdout and stderr of the command, in this process."""

    def call(*words: str) -> tuple[int, str, str]:
        try:
            status = main(list(words))
        except SystemExit as end:  # argparse's, after the help of a command
            status = int(end.code or 0)
        return (status, *capsys.readouterr())

    return call


def test_help_tells_the_commands_and_the_keys(called: Callable[..., tuple[int, str, str]]) -> None:
    _, help_text, _ = called("--help")
    for word in (
        "doctor",
        "torchrun",
        "-m",
        "--config-dir",
        "--keys",
        "plan=true",
        "layout=",
        "benchmark=",
    ):
        assert word in help_text
    _, keys, _ = called("--keys")
    own = (CONF / "config.yaml").read_text().partition("\nhydra:")[0].splitlines()
    assert {line for line in own if "ydra" not in line} <= {"  - _self_", *keys.splitlines()}
    assert "hydra" not in keys and max(map(len, keys.splitlines())) <= 100
    for line in (
        "timing: default, fixed, quick, rigorous, soak",
        "threads: funneled",
        "hostfile: null",
        "target: 0.01",
    ):
        assert line in keys
    assert "# backend=mpi: backend.KEY=VALUE" in keys
    assert called("help") == (0, help_text, "")
    assert called("--version") == (0, f"commbench {version('commbench')}\n", "")


def test_the_help_of_a_command_has_its_options(called: Callable[..., tuple[int, str, str]]) -> None:
    assert "--force" in called("resume", "--help")[1]
    assert called("help", "resume") == called("resume", "--help")
    assert called("help", "run") == called("--help")


@pytest.mark.parametrize(
    "words",
    [["reprot"], ["reprot", "results", "--html", "x"], ["run", "resmue"], ["sizes=[8]", "report"]],
    ids=" ".join,
)
def test_a_mistyped_command_is_told_the_one_that_is_meant(
    words: list[str], called: Callable[..., tuple[int, str, str]]
) -> None:
    status, out, err = called(*words)
    assert (status, out) == (2, "")
    meant = "resume" if "resmue" in words else "report"
    assert "is neither KEY=VALUE nor a command" in err and f"did you mean {meant}" in err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("osu_bww", "did you mean osu_bw or"),
        ("nccl", "backend=nccl"),
        ("keys", "commbench --keys"),
        ("1KiB]", "sizes=[8,1KiB]"),
        ("iters=100", "timing.repetitions"),
        ("ranks=4", "layout=1x"),
        ("--backend=gloo", "backend=gloo"),
        ("writer=csv", "commbench export RUN"),
        ("benchmark=allreduce", "did you mean all_reduce?"),
        ("expect=busbw>10", "did you mean busbw_gb_per_s?"),
    ],
)
def test_what_other_tools_call_it_is_told_what_it_is_here(
    word: str, meant: str, called: Callable[..., tuple[int, str, str]]
) -> None:
    status, out, err = called(word)
    assert (status, out) == (2, "")
    assert meant in err and len(err.splitlines()) == 1


@pytest.fixture
def without_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of a user without HOME and without an entry in passwd."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_user_without_a_home_gets_one_that_no_other_user_can_write_to(without_home: Path) -> None:
    main_module._shield_children()
    home = Path(os.environ["HOME"])
    assert home.parent == without_home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    del os.environ["HOME"]
    main_module._shield_children()
    assert os.environ["HOME"] == str(home), "the same for the next command"


@pytest.mark.parametrize("planted", ["open", "link", "file", "foreign"])
def test_a_home_that_another_user_has_planted_is_not_taken(
    planted: str, without_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = without_home / f"commbench-home-{os.geteuid()}"
    (without_home / "theirs").mkdir(mode=0o700)
    if planted == "link":
        folder.symlink_to(without_home / "theirs")
    elif planted == "file":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o700)
        folder.chmod(0o777 if planted == "open" else 0o700)
    if planted == "foreign":
        monkeypatch.setattr(os, "geteuid", Mock(return_value=os.geteuid() + 1))
        folder.rename(without_home / f"commbench-home-{os.geteuid()}")
    main_module._shield_children()
    home = Path(os.environ["HOME"])
    assert home.is_dir() and home.name not in (folder.name, f"commbench-home-{os.geteuid()}")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_without_a_folder_for_temporary_files_the_home_is_one_that_nothing_can_be_in(
    without_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(without_home / "missing"))
    main_module._shield_children()
    assert os.environ["HOME"] == os.devnull


@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=pytest.mark.long)])
def test_a_module_of_the_working_directory_is_not_imported(
    backend: str, started_world: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a missing HOME matter: without it mpirun crashes."""
    if sys.version_info < (3, 11):
        pytest.skip("PYTHONSAFEPATH is of Python 3.11")
    monkeypatch.delenv("HOME")
    for name in ("commbench", "select", "mpi4py"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    fixed = (
        "timing=fixed",
        "timing.repetitions=2",
        "timing.warmup_s=0",
        "benchmark=p2p_latency",
        "sizes=[8]",
    )
    run = started_world("commbench", f"backend={backend}", *fixed, cwd=tmp_path)
    assert "imported" not in run.stdout + run.stderr


def test_doctor_names_this_machine_and_every_backend() -> None:
    text = doctor().stdout
    assert os.uname().release in text
    backends = lines_of(text.partition("\nbackends\n")[2])
    assert [line.split()[0] for line in backends] == sorted(BACKENDS)
    assert any(line.split(maxsplit=1) == ["gloo", "can run here"] for line in backends)


def test_doctor_shows_what_people_of_clusters_look_for_first() -> None:
    facts = {
        "host.numa_node0_cpus": "0-3",
        "host.numa_node1_cpus": "4-7",
        "host.ulimit_memlock_bytes": 2**23,
        "host.ulimit_nofile": 1024,
        "network.interface.eth0.state": "up",
        "network.interface.eth0.speed_mbit_per_s": 100000,
        "network.interface.eth0.mtu_bytes": 9000,
        "network.interface.eth0.numa_node": 1,
        "network.interface.eth0.100.mtu_bytes": 1500,
        "network.interface.lo.mtu_bytes": 65536,
        "network.rdma.mlx5_0.firmware": "28.39.2048",
        "network.rdma.mlx5_0:1.state": "ACTIVE",
        "network.rdma.mlx5_0:1.link_layer": "InfiniBand",
        "network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0,
    }
    lines = [" ".join(line.split()) for line in machine_text(facts, [], {}).splitlines()]
    assert "NUMA nodes 0: cores 0-3; 1: cores 4-7" in lines
    assert "limits locked memory 8 MiB, open files 1024" in lines
    at = lines.index("network")
    assert lines[at + 1 : at + 4] == [
        "eth0 up, 100 Gb/s, MTU 9000, NUMA node 1",
        "eth0.100 rate unknown, MTU 1500",
        "mlx5_0:1 RDMA, ACTIVE, 400 Gb/s, InfiniBand",
    ]
    peers = {"access": True, "native_atomics": False, "performance_rank": 0}
    pairs = {f"peer.{pair}.{key}": value for pair in ("0-1", "1-0") for key, value in peers.items()}
    text = " ".join(machine_text(pairs, [], {}).split())
    assert "2 pairs of GPUs access True, native atomics False, performance rank 0: 0-1, 1-0" in text
    nothing = " ".join(machine_text({}, [], {}).split())
    assert "network none no interface but loopback RDMA devices none" in nothing


@pytest.mark.parametrize("name", ["topo_k80x8.txt", "topo_dgx_a100.txt"])
def test_doctor_prints_the_topology_matrix_of_a_driver(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = HARDWARE_TEXTS / name
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$*" = "topo -m" ] && cat {table}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert doctor_command([]) == 0
    text = capsys.readouterr().out
    assert parse_topo(text.partition("\nGPU\n")[2]) == parse_topo(table.read_text())
    assert "\x1b" not in text and "\\" not in text.partition("\nGPU\n")[2]


@pytest.mark.parametrize(
    ("facts", "is_missing"),
    [({}, True), ({"versions.nccl_system": "2.27.7"}, False), ({"versions.torch_hip": "7"}, False)],
)
def test_doctor_says_that_no_nccl_is_found(facts: dict[str, str], is_missing: bool) -> None:
    lines = [line.split() for line in machine_text(facts, [], {}).splitlines()]
    assert (["NCCL", "none", "found"] in lines) == is_missing


def test_doctor_gives_all_facts_to_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor_command(["--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["facts"]["host.kernel"] == os.uname().release
    assert record["backends"]["gloo"] is None and isinstance(record["notes"], list)


def test_a_sweep_over_nothing_is_refused(called: Callable[..., tuple[int, str, str]]) -> None:
    status, _, err = called("-m")
    assert (status, err.count("\n")) == (2, 1) and "-m backend=gloo,mpi" in err


def test_doctor_tells_a_small_shared_memory() -> None:
    text = machine_text({"limits.shm_total_bytes": 2**16}, [], {})
    (line,) = [line for line in lines_of(text) if line.startswith("  shared memory ")]
    assert "/dev/shm has 64 KiB" in line and "--shm-size=8g" in line


def test_doctor_tells_what_could_not_be_read_or_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = "git status did not answer within 2 s"
    monkeypatch.setattr(machine_facts, "collect", lambda: {"versions.error": slow})
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 1')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor_command([]) == 0
    lines = lines_of(capsys.readouterr().out)
    notes = [line.split(maxsplit=1)[1] for line in lines if " note " in line]
    assert slow in notes
    assert "engine=native can't be loaded, use engine=python: ImportError: Numba needs NumPy 1" in (
        notes
    )


def test_a_library_that_fails_hides_no_other_from_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: object, device: str) -> None:
        raise RuntimeError("libmpi is cut")

    monkeypatch.setattr("commbench.backends.mpi.backend.Mpi.missing", fail)
    monkeypatch.setattr("commbench.cli.doctor.native_engine_problem", lambda: None)
    assert doctor_command([]) == 0
    text = capsys.readouterr().out
    assert "RuntimeError: libmpi is cut" in text and "gloo                     can run" in text


def test_doctor_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "conf" / "backend"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("_target_: mine.Mine\n")
    (folder / "torn.yaml").write_text("_target_: [\n")
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    assert doctor_command(["--config-dir", "conf"]) == 0
    backends = capsys.readouterr().out.partition("\nbackends\n")[2]
    states = {line.split()[0]: line for line in lines_of(backends)}
    assert "MPI4PY_LIBMPI=/nowhere/libmpi.so is not a file" in states["mpi"]
    assert "permit it with allow=[mine]" in states["mine"]
    assert "parsing" in states["torn"]
    assert "can run here" in states["gloo"] and "can run here" in states["simulated"]


def test_a_driver_that_is_too_old_is_told_by_doctor_and_before_a_start(tmp_path: Path) -> None:
    """By a machine with driver and GPU whose CUDA is older than the one that the planted torch was
    built for."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "torch/version.py").write_text("cuda = '13.0'\n")
    old = shown(tmp_path, hgx(1, "driver 570.86.10", "cuda 12080"), tmp_path)
    reason = (
        "torch is built for CUDA 13.0, and this driver runs CUDA 12.8 at most; install driver 580"
        " or newer, or "
    )
    both = "import sys; from commbench.cli.main import main; main(['doctor']); print('start')\n"
    done = command(
        sys.executable, "-c", f"{both}sys.exit(main(['backend=nccl', 'layout=1x1']))", **old
    )
    doctor, _, started = done.stdout.partition("start\n")
    assert "  driver                   570.86.10, CUDA 12.8 at most, 1 GPU(s)\n" in doctor
    assert [line.split()[0] for line in lines_of(doctor) if reason in line] == [
        "cuda_copy",
        "nccl",
        "symm_mem",
    ]
    assert (done.returncode, started) == (2, "")
    # by the rank server, which starts first
    (line,) = set(done.stderr.splitlines()) - {"torch was imported"}
    assert line.startswith(f"commbench: backend=nccl: {reason}a torch for an older CUDA")


def test_the_module_is_the_script() -> None:
    done = command(sys.executable, "-m", "commbench", "sizes=[10]", "plan=true")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "commbench: sizes=[10] is not a whole number of float32 elements (4 B each); write e.g."
        " [8]\n"
    )


# ---------------------------------------------------------------- a rank that does not know its
# world


def test_a_rank_without_a_world_starts_none(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    ends = folder / "ends"  # what its parent reads
    parent = {"COMMBENCH_FOLDER": str(folder), "COMMBENCH_ENDS": str(ends)}
    done = command(SCRIPT, "backend=gloo", **parent)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("commbench: ") and len(done.stderr.splitlines()) == 1
    assert "exported no rank" in done.stderr
    assert [(end.ended, end.status) for end in read_ends(ends)] == [("run", 3)]
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    "words", [["-m", "layout=1x1,1x2"], ["backend=simulated"], ["plan=true"]], ids=" ".join
)
def test_neither_sweeps_nor_plans_nor_a_lost_folder_make_a_difference(
    words: list[str],
    called: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMMBENCH_FOLDER", str(tmp_path / "gone"))
    status, out, err = called(*words)
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert list(tmp_path.iterdir()) == []


def test_doctor_reports_files_and_folders_that_disturb_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert folder_problems() == []
    (tmp_path / "commbench.py").touch()
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    lines = folder_problems()
    assert [line.partition(" ")[0] for line in lines[:1]] == ["rename"] and "output=DIR" in lines[1]
    monkeypatch.setattr(Path, "owner", lambda path: {}["no passwd entry"])
    assert f"belongs to user {os.getuid()}: " in folder_problems()[1]


@pytest.mark.parametrize("option", ["--keys", "--operations"])
def test_a_reader_that_has_seen_enough_is_no_error(option: str) -> None:
    """As in `commbench --keys | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "commbench", option]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
