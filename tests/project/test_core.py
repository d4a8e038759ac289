"""The core alone beside torch and numpy: installed from wheels, and as one file; commbench-replay
beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from bare_environment import bare_environment
from places import ROOT

import commbench

WORDS = ("benchmark=[p2p_latency,all_reduce]", "sizes=[8,64KiB]", "timing=quick", "output=results")
REPLAY = ("replay", "ddp", "params=1e6", "ranks=2", "--export", "job.json")
MOST_WHEELS = 11  # commbench and psutil, and nine of hydra-core and rich
MOST_BYTES = 5_000_000
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_environment(tmp_path_factory.mktemp("bare") / "venv")


def run(words: Sequence[object], folder: Path) -> str:
    """Its stdout and stderr."""
    environment = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_results(folder: Path, output: str) -> None:
    """Of a run of WORDS without pyarrow: a table, and results that others read."""
    assert "pip install 'commbench[parquet]'" in output and "results are stored as JSON" in output
    assert "p2p_latency" in output and "all_reduce" in output and "64 KiB" in output
    cases = commbench.load(folder / "results")
    assert list(cases.status) == ["ok"] * 4 and (cases.wrong_elements == 0).all()
    words = [sys.executable, "-m", "commbench", "report", "results"]
    report = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    assert "all_reduce" in report.stdout
    (one,) = folder.glob("results/*")
    samples = commbench.load(one, table="samples")
    words = [sys.executable, "-m", "commbench", "export", str(one), "--parquet"]
    subprocess.run(words, check=True, capture_output=True)
    assert commbench.load(one / "samples.parquet", table="samples").equals(samples)
    assert commbench.load(one / "cases.parquet").equals(cases)


def check_replay(folder: Path, *program: object) -> None:
    """A job is made, and replayed as a run."""
    run([*program, *REPLAY], folder)
    words = ("benchmark=replay", "workload=job.json", "timing=quick", "output=replayed")
    run([*program, *words], folder)
    assert set(commbench.load(folder / "replayed").benchmark) == {"replay"}


def test_wheels_alone_bring_what_a_run_needs(python: Path, tmp_path: Path) -> None:
    make = ["make", "--no-print-directory", f"VENV={Path(sys.executable).parents[1]}"]
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    for name in ("Makefile", "setup.cfg", "replay/setup.cfg"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*make, "wheel"], cwd=source, check=True, capture_output=True)
    report = tmp_path / "report.json"
    (wheel,) = (source / "dist").glob("commbench-*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run(
        [
            *(*pip, "--only-binary=:all:", "--find-links", str(source / "dist"), str(wheel)),
            *("--constraint", str(ROOT / "constraints.txt"), "--report", str(report)),
        ],
        check=True,
    )
    installed = json.loads(report.read_text())["install"]
    names = sorted(each["metadata"]["name"] for each in installed)
    assert "torch" not in names and len(names) <= MOST_WHEELS, names
    output = run([python, "-m", "commbench", *WORDS], tmp_path)
    check_results(tmp_path, output)
    (wheel,) = (source / "dist").glob("commbench_replay-*.whl")
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    check_replay(tmp_path, python, "-m", "commbench")


def test_one_file_runs_in_an_image_that_has_torch(python: Path, tmp_path: Path) -> None:
    archive = tmp_path / "shared" / "commbench.pyz"
    archive.parent.mkdir()
    subprocess.run([sys.executable, "tools/pyz", str(archive)], cwd=ROOT, check=True)
    assert archive.stat().st_size < MOST_BYTES
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", 2]
    check_results(tmp_path, run([*torchrun, "shared/commbench.pyz", *WORDS], tmp_path))
    assert len(list(archive.parent.glob(".commbench.pyz-*"))) == 1, "unpacked once"
    shutil.rmtree(tmp_path / "results")  # now with ranks that it starts itself
    check_results(tmp_path, run([python, archive, *WORDS], tmp_path))
    check_replay(tmp_path, python, archive)
