"""What docs/security.md says and no other test shows."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import commbench
from commbench.cli.main import main
from commbench.config.compose import ConfigComposer
from commbench.core.errors import ConfigError
from commbench.hardware import machine_facts
from commbench.runtime import rank_server

WORDS = ("backend=simulated", "benchmark=all_reduce", "sizes=[8]", "timing=fixed")
RUN = (*WORDS, "timing.repetitions=5", "writer=[parquet,jsonl]")


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside_any_world: None) -> None:
    monkeypatch.chdir(tmp_path)


def test_ranks_of_this_machine_meet_on_loopback() -> None:
    assert rank_server.LOOPBACK == "127.0.0.1"


def test_what_a_run_records_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("UNRELATED", "hunter2")
    folder = commbench.run(*RUN, "label='token=of my own'")
    record = json.loads((folder / "run.json").read_text())
    (node,) = record["provenance"]["nodes"]
    assert node["environment.NCCL_ALGO"] == "Ring" and "host.kernel" in node
    assert not machine_facts.is_recorded("UNRELATED")
    assert "hunter2" not in (folder / "run.json").read_text()
    assert commbench.load(folder).label[0] == "token=of my own"


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o027])
def test_files_get_the_permissions_of_the_umask(umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = commbench.run(*RUN)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask
    files = [path for path in folder.rglob("*") if path.is_file()]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    assert len(files) >= 4 and set(modes.values()) == {0o666 & ~umask}, modes


def write(name: str, text: str) -> None:
    path = Path("conf", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("group", "text", "message"),
    [
        ("launcher", "mpirun.Mpirun\nagent: /bin/sh\nhosts: [a]\n", "launcher.agent=/bin/sh"),
        ("launcher", "mpirun.Mpirun\noptions: [--x]\n", "launcher.options=['--x']"),
        ("launcher", "srun.Srun\noptions: [--x]\n", "launcher.options=['--x']"),
        ("backend", "mpi.backend.Mpi\nlibrary: /tmp/x.so\n", "backend.library=/tmp/x.so"),
        ("backend", "mpi.backend.Mpi\nlibrary: ./x.so\n", "backend.library=./x.so"),
    ],
)
def test_a_file_names_no_program_and_no_path_of_a_library(
    group: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(f"{group}/mine.yaml", f"_target_: commbench.{group}s.{text}")
    words = [f"{group}=mine", "sizes=[8]", "plan=true"]
    assert main(["--config-dir", "conf", *words]) == 2
    assert f"a file sets {message}, which " in capsys.readouterr().err


def paths_below(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*")}


def test_no_value_but_output_becomes_part_of_a_path(tmp_path: Path) -> None:
    """Values that would leave the folder if they were."""
    climbing = "../../climbed"
    values: dict[str, Any] = {"label": climbing, "env": {"NCCL_ALGO": climbing}}
    folder = commbench.run(*RUN, values, f"output={tmp_path / 'here'}")
    assert folder.parent == tmp_path / "here"
    outside = {path for path in paths_below(tmp_path) if path.parts[0] != "here"}
    assert outside == set() and not (tmp_path.parent / "climbed").exists()
    for word in (f"stage={climbing}", f"experiment={climbing}", f"benchmark={climbing}"):
        with ConfigComposer() as composer, pytest.raises(ConfigError):
            composer.jobs([word], False)
