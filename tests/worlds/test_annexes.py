"""Without commbench-replay, the annex and each feature can be deleted: the main job, show, report
and compare run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uninstalled import packages_without_commbench

import commbench
from commbench.cli.main import main
from commbench.core.annexes import INSTALL_REPLAY

PACKAGE = Path(commbench.__file__).parent
ANNEX = "cluster"
FEATURES = tuple(
    f"features/{folder.parent.name}" for folder in sorted(PACKAGE.glob("features/*/__init__.py"))
)
FEW = ("timing=fixed", "timing.repetitions=5", "sizes=[8]", "layout=1x2")


def without(folder: Path, *deleted: str) -> dict[str, str]:
    """The environment of a copy of the package that lacks these folders; nothing else of commbench
    is there."""
    packages = packages_without_commbench(folder / "packages")
    copy = folder / "tree" / "commbench"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in deleted:
        shutil.rmtree(copy / name)
    return {**os.environ, "PYTHONPATH": f"{copy.parent}{os.pathsep}{packages}"}


@pytest.fixture(scope="module")
def without_annex(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return without(tmp_path_factory.mktemp("copy"), ANNEX)


def run(env: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # -S: an editable installation would find the annexes in the source tree
    command = [sys.executable, "-S", "-m", "commbench", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("deleted", [ANNEX, *FEATURES])
def test_the_main_job_and_its_readers_need_neither_annex_nor_feature(
    deleted: str, tmp_path: Path
) -> None:
    env = without(tmp_path, deleted)
    for backend in ("gloo", "simulated"):
        done = run(env, tmp_path, f"backend={backend}", *FEW, f"output={backend}")
        assert done.returncode == 0, done.stderr
    assert run(env, tmp_path, "show", "gloo").returncode == 0
    assert "gloo" in run(env, tmp_path, "report", "gloo", "--html", "a.html").stdout
    compared = run(env, tmp_path, "compare", "gloo", "gloo")
    assert compared.returncode == 0, compared.stderr
    if deleted != ANNEX:
        judged = run(env, tmp_path, "accept", "gloo")
        assert judged.returncode in (0, 1, 4), judged.stderr


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("group", ["experiment", "backend", "benchmark", "timing"])
def test_a_file_of_a_feature_is_unknown_without_it(
    group: str, feature: str, tmp_path: Path
) -> None:
    files = [*(PACKAGE / feature).glob(f"{group}/*.yaml")]
    env = without(tmp_path, feature) if files else {}
    for file in files:
        refused = run(env, tmp_path, f"{group}={file.stem}")
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
        assert f"{group}={file.stem} is unknown" in refused.stderr


def test_what_the_annex_would_do_is_refused_in_one_line(
    without_annex: dict[str, str], tmp_path: Path
) -> None:
    words = ("backend=simulated", "benchmark=p2p_latency", "pairs=search", "layout=8x1")
    words += ("schedule=rounds",)
    searching = run(without_annex, tmp_path, *words)
    assert searching.returncode == 2
    assert searching.stderr.count("\n") == 1 and "commbench.cluster" in searching.stderr
    assert "commbench.cluster" in run(without_annex, tmp_path, "locate").stderr


@pytest.mark.parametrize(
    ("feature", "key"),
    [
        ("documents", "expect=normal"),
        ("overlap", "overlap=sleep"),
        ("overlap", "compute=100us"),
        ("traffic", "traffic=ring"),
        ("groups", "groups=all_reduce@tp2"),
        ("accuracy", "payload=rounding"),
        ("streams", "+timing.duration_s=1"),
    ],
)
def test_a_key_of_a_feature_is_refused_with_its_name(
    feature: str, key: str, tmp_path: Path
) -> None:
    env = without(tmp_path, f"features/{feature}")
    refused = run(env, tmp_path, "backend=simulated", key)
    needed = f"{key.lstrip('+')} needs commbench.features.{feature}, which is not there"
    assert (refused.returncode, refused.stderr) == (2, f"commbench: {needed}\n")


def test_a_command_of_a_feature_is_refused_with_its_name(tmp_path: Path) -> None:
    env = without(tmp_path, "features/other_tools")
    for words, user in ((["import", "a.log"], "commbench import"), (["osu_bw"], "osu_bw")):
        refused = run(env, tmp_path, *words)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
        assert f"{user} needs commbench.features.other_tools" in refused.stderr


def test_a_function_of_a_feature_is_refused_with_its_name(tmp_path: Path) -> None:
    program = "import commbench; commbench.soak_intervals('.')"
    env = without(tmp_path, "features/streams")
    command = [sys.executable, "-S", "-c", program]
    refused = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert refused.stderr.endswith(
        "commbench.soak_intervals needs commbench.features.streams, which is not there\n"
    )


SOAK = ("timing=soak", "timing.duration_s=0.02", "timing.interval_s=0.005", "layout=1x2")


@pytest.mark.parametrize(
    ("feature", "words", "seen"),
    [
        ("overlap", ("overlap=sleep", *FEW), "sleep"),
        ("accuracy", ("payload=rounding", *FEW), "rounding"),
        ("streams", SOAK, "all_reduce"),
    ],
)
def test_rows_of_a_feature_are_read_without_it(
    feature: str, words: tuple[str, ...], seen: str, tmp_path: Path
) -> None:
    simulated = ("backend=simulated", "benchmark=all_reduce", f"output={tmp_path / 'runs'}")
    assert main([*simulated, *words]) == 0
    env = without(tmp_path, f"features/{feature}")
    for reading in (("show", "runs"), ("report", "runs"), ("compare", "runs", "runs")):
        read = run(env, tmp_path, *reading)
        assert read.returncode == 0, read.stderr
        assert seen in read.stdout or reading[0] == "report"


def test_what_is_not_shown_of_soaks_is_said_with_the_folder_that_shows_it(tmp_path: Path) -> None:
    simulated = ("backend=simulated", "benchmark=all_reduce", f"output={tmp_path / 'runs'}")
    assert main([*simulated, *SOAK]) == 0
    line = "soaks over time need commbench.features.streams, which is not there"
    env = without(tmp_path, "features/streams")
    for command in ("show", "report"):
        assert line in run(env, tmp_path, command, "runs").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("replay", "ddp"), "commbench replay needs commbench_replay, which is not there"),
        (("benchmark=replay",), "benchmark=replay is unknown; commbench-replay has it"),
    ],
)
def test_what_another_distribution_would_do_is_refused_with_the_way_to_install_it(
    words: tuple[str, ...], said: str, without_annex: dict[str, str], tmp_path: Path
) -> None:
    refused = run(without_annex, tmp_path, *words)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(f"commbench: {said}: {INSTALL_REPLAY}")
