"""`make gpu-check` on a machine without a GPU: alone, and with a stand-in for the driver's library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from places import ROOT, TOOLS

from commbench.config.compose import ConfigComposer
from commbench.core.errors import ConfigError

sys.path.insert(0, str(TOOLS / "gpu"))

import checks
from check import Outcome
from machine import Machine, gpu_count
from sights import column, counted, ends_with, filled, measured, measured_or_refused, recorded, says, skipped
from stand_in import library_folder

EVERYTHING = Machine(4, "2.11", "13.0", "2.28", ("A",) * 4, (1 << 36,) * 4, "14.0", 22800, "4.1", "libmpi.so")
ALL = {check.name: check for check in checks.checks(EVERYTHING)}
LIMIT_S = 100


def gpu_check(out: Path, *names: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = ["timeout", "-k", "5", str(LIMIT_S), sys.executable, str(TOOLS / "gpu"), str(out), *names]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **env})


def table(out: Path) -> dict[str, dict[str, str]]:
    return {line["name"]: line for line in json.loads((out / "table.json").read_text())}


@pytest.mark.skipif(isinstance(gpu_count(), int), reason="there is a GPU here")
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_without_a_gpu_it_says_why_in_one_line(tmp_path: Path) -> None:
    words = ["make", "--no-print-directory", "gpu-check", f"PYTHON={sys.executable}", f"OUT={tmp_path / 'out'}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1 and said[0].startswith("gpu-check: libcuda.so.1 is not here"), done.stderr


@pytest.mark.long
def test_what_is_possible_is_checked_and_packed(tmp_path: Path) -> None:
    out, driver = tmp_path / "out", library_folder(tmp_path)
    done = gpu_check(out, "ipc_copy", "bad_ipc_off", "nccl_layouts", LD_LIBRARY_PATH=str(driver))
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {name: line["verdict"] for name, line in table(out).items()}
    assert verdicts == {"ipc_copy": "ok", "bad_ipc_off": "ok", "nccl_layouts": "not possible"}, done.stdout
    assert table(out)["nccl_layouts"]["detail"].startswith("torch ")
    known = json.loads((out / "evidence.json").read_text())
    assert known["machine"]["gpus"] == 1 and known["facts"]["host.kernel"]
    with tarfile.open(out / "gpu-check.tar.gz") as archive:
        names = archive.getnames()
    assert {"gpu-check/table.txt", "gpu-check/evidence.json", "gpu-check/ipc_copy/stderr.txt"} <= set(names)
    assert (
        sum(name.endswith("cases.parquet") for name in names) == 1 == sum(name.endswith("run.json") for name in names)
    )
    assert not any("samples" in name or "/site/" in name for name in names)


@pytest.mark.long
def test_a_failed_check_is_told_and_the_next_ones_go_on(tmp_path: Path) -> None:
    out, driver = tmp_path / "out", library_folder(tmp_path)
    done = gpu_check(out, "ipc_copy", "bad_ipc_off", LD_LIBRARY_PATH=str(driver), COMMBENCH_BYTES="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert {name: line["verdict"] for name, line in table(out).items()} == {"ipc_copy": "failed", "bad_ipc_off": "ok"}
    assert "CUDA_ERROR_OUT_OF_MEMORY" in table(out)["ipc_copy"]["detail"]


def test_an_unknown_check_is_refused(tmp_path: Path) -> None:
    done = gpu_check(tmp_path / "out", "nosuch", LD_LIBRARY_PATH=str(library_folder(tmp_path)))
    assert done.returncode == 2 and "unknown checks: nosuch; allowed: doctor, " in done.stderr


@pytest.mark.parametrize("name", ALL)
def test_every_command_line_is_one(name: str) -> None:
    """Those that are to be refused as bad input are, if this needs no GPU; the others are valid configurations."""
    words = [word for word in ALL[name].words if word != "-m"]
    if words == ["doctor"]:
        return
    with ConfigComposer() as door:
        backend = words[0].removeprefix("backend=")
        if backend not in door.options("backend"):
            pytest.skip(f"conf/backend has no {backend}")
        if name == "bad_graph_on_cpu":
            with pytest.raises(ConfigError, match="timing_mode=graph needs device=cuda"):
                door.jobs(words, multirun=False)
        else:
            assert door.jobs(words, multirun="-m" in ALL[name].words)


def test_together_they_fit_into_the_time_where_nothing_hangs() -> None:
    alone = [one for one in checks.checks(EVERYTHING) if one.possible(Machine(1, "2.11", "13.0", "2.28")) is None]
    assert len(alone) > 8 and all(one.timeout_s <= 120 for one in ALL.values())


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A real run of a case, and of one that is skipped."""
    folder = tmp_path_factory.mktemp("simulated")
    words = ["backend=simulated", "benchmark=p2p_latency", "layout=[1x1,1x2]", "sizes=[8]"]
    command = [sys.executable, "-m", "commbench", *words, "timing=quick", f"output={folder / 'results'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    return Outcome(
        folder, done.returncode, done.stdout, done.stderr + "commbench: Rank 0 and rank 1 have one GPU\n", 1.0
    )


def test_what_was_seen_is_accepted(outcome: Outcome) -> None:
    sights = (
        ends_with(0), says("ranks? 0", "gpu"), measured(pair="0-1"), measured_or_refused(pair="0-1"),
        skipped("needs 2 ranks", layout="1x1"), column("backend", ("simulated",)), filled("median_s"),
        recorded("run_id"),
    )  # fmt: skip
    assert [one.missed(outcome) for one in sights] == [None] * len(sights)


def test_what_was_not_seen_is_told(outcome: Outcome) -> None:
    sights = (
        ends_with(3), says("nobody"), measured(layout="1x1"), measured_or_refused(layout="1x1"),
        skipped("memory", layout="1x1"),
        column("backend", ("gloo",)), filled("limit_name"), recorded("ipc_refused"), counted("gpu.sm_clock_mhz"),
    )  # fmt: skip
    assert all(one.missed(outcome) for one in sights)
