"""Without commbench-replay, the annex and each feature can be deleted: the main job, show, report
and compare run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import PACKAGES
from uninstalled import packages_without_commbench

from commbench.cli.main import main
from commbench.core.annexes import INSTALL_REPLAY

PACKAGE, REPLAY = PACKAGES
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


@pytest.mark.parametrize(
    ("feature", "words", "user"),
    [
        ("doctor", ["doctor"], "commbench doctor"),
        ("export", ["export", "runs"], "commbench export"),
        ("other_tools", ["import", "a.log"], "commbench import"),
        ("other_tools", ["osu_bw"], "osu_bw"),
    ],
)
def test_a_command_of_a_feature_is_refused_with_its_name(
    feature: str, words: list[str], user: str, tmp_path: Path
) -> None:
    refused = run(without(tmp_path, f"features/{feature}"), tmp_path, *words)
    needed = f"{user} needs commbench.features.{feature}, which is not there"
    assert (refused.returncode, refused.stderr) == (2, f"commbench: {needed}\n")


@pytest.mark.parametrize(
    ("feature", "words", "user"),
    [
        ("other_tools", ["job.json"], "commbench replay"),
        ("hockney", ["ddp", "params=1e6", "ranks=2", "--from", "runs"], "commbench replay --from"),
    ],
)
def test_a_replay_is_refused_with_the_feature_that_it_needs(
    feature: str, words: list[str], user: str, tmp_path: Path
) -> None:
    env = without(tmp_path, f"features/{feature}")
    (tmp_path / "tree" / "commbench_replay").symlink_to(REPLAY)
    simulated = ("backend=simulated", *FEW, "output=runs")
    assert run(env, tmp_path, *simulated).returncode == 0
    assert run(env, tmp_path, "report", "runs").returncode == 0
    refused = run(env, tmp_path, "replay", *words)
    needed = f"{user} needs commbench.features.{feature}, which is not there"
    assert (refused.returncode, refused.stderr) == (2, f"commbench: {needed}\n")


@pytest.mark.parametrize(
    ("feature", "function"),
    [("streams", "soak_intervals"), ("launch_overhead", "launch_overhead")],
)
def test_a_function_of_a_feature_is_refused_with_its_name(
    feature: str, function: str, tmp_path: Path
) -> None:
    program = f"import commbench; commbench.{function}('.')"
    env = without(tmp_path, f"features/{feature}")
    command = [sys.executable, "-S", "-c", program]
    refused = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert refused.stderr.endswith(
        f"commbench.{function} needs commbench.features.{feature}, which is not there\n"
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
