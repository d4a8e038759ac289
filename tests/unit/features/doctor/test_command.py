"""`commbench doctor`: what this machine has and what is missing, without torch."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from places import BACKENDS, HARDWARE_TEXTS
from shell_commands import HEAVY, command, listing_command
from shown_gpus import hgx, shown

from commbench.cli.main import main
from commbench.features.doctor.command import doctor, folder_problems, machine_text
from commbench.hardware import machine_facts
from commbench.hardware.topology import TOPOLOGY_FACT, parse_topo

pytestmark = pytest.mark.usefixtures("outside_any_world")


@cache
def started() -> tuple[CompletedProcess[str], set[str]]:
    return listing_command("doctor")


def lines_of(doctor_text: str) -> list[str]:
    """A line for each fact, without the line breaks of a long one."""
    return re.sub(r"\n {20,}", " ", doctor_text).splitlines()


def test_doctor_imports_no_library_that_is_measured() -> None:
    done, imported = started()
    assert (done.returncode, done.stderr) == (0, "")
    assert "argparse" in imported and imported & HEAVY == set()


def test_doctor_names_this_machine_and_every_backend() -> None:
    text = started()[0].stdout
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
    assert doctor([]) == 0
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
    assert doctor(["--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["facts"]["host.kernel"] == os.uname().release
    assert record["backends"]["gloo"] is None and isinstance(record["notes"], list)


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
    assert doctor([]) == 0
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
    monkeypatch.setattr("commbench.features.doctor.command.native_engine_problem", lambda: None)
    assert doctor([]) == 0
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
    assert doctor(["--config-dir", "conf"]) == 0
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


def test_doctor_says_why_gpus_and_links_are_not_known() -> None:
    reason = "amd-smi printed no JSON that can be read"
    assert f"not known {reason}" in " ".join(machine_text({"gpu.reason": reason}, [], {}).split())
    table = (HARDWARE_TEXTS / "topo_k80x8.txt").read_text()
    partly = {TOPOLOGY_FACT: table, "topology.reason": "the cells of GPU0 are shifted"}
    text = " ".join(machine_text(partly, [], {}).split())
    assert "topology the matrix below; the cells of GPU0 are shifted" in text


def test_a_working_directory_that_is_gone_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == (
        "commbench: the working directory is gone: it was removed; change to another one\n"
    )
