"""Without commbench-replay, the annex and each feature can be deleted: the main job, show, report
and compare run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from forked_commands import command, commands, packages
from places import PACKAGES

from commbench.cli.main import main
from commbench.core.annexes import INSTALL_REPLAY

PACKAGE, REPLAY = PACKAGES
ANNEX = "cluster"
FEATURES = tuple(
    f"features/{folder.parent.name}" for folder in sorted(PACKAGE.glob("features/*/__init__.py"))
)
SIMULATED = "features/simulated"  # the world of most jobs here
FEW = ("timing=fixed", "timing.repetitions=5", "sizes=[8]", "layout=1x2")
Without = Callable[[str], Path]


def copy_without(folder: Path, deleted: str) -> Path:
    """The folder of a copy of the package that lacks this folder."""
    copy = folder / "tree" / "commbench"
    # with its bytecode: to compile all of it again takes seconds
    shutil.copytree(PACKAGE, copy)
    shutil.rmtree(copy / deleted)
    return copy.parent


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Without:
    """without(FOLDER): `copy_without`, one copy for all tests."""
    return cache(lambda deleted: copy_without(tmp_path_factory.mktemp("copy"), deleted))


def run(tree: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As a user starts it; nothing else of commbench is there."""
    # -S: an editable installation would find the annexes in the source tree
    command = [sys.executable, "-S", "-m", "commbench", *words]
    env = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{packages()}"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("deleted", [ANNEX, *(name for name in FEATURES if name != SIMULATED)])
def test_a_simulated_job_and_its_readers_need_neither_annex_nor_feature(
    deleted: str, without: Without, tmp_path: Path
) -> None:
    measured, shown, reported, compared, judged = commands(
        without(deleted),
        tmp_path,
        ["backend=simulated", *FEW, "output=runs"],
        ["show", "runs"],
        ["report", "runs"],
        ["compare", "runs", "runs"],
        ["accept", "runs"],
    )
    assert measured.returncode == 0, measured.stderr
    assert shown.returncode == 0, shown.stderr
    assert reported.returncode == 0, reported.stderr
    assert compared.returncode == 0, compared.stderr
    assert judged.returncode in ((0, 1, 4) if deleted != ANNEX else (2,)), judged.stderr


# one stands for all in `make test`: the ranks import what the simulated job does, and their library
@pytest.mark.parametrize(
    "deleted",
    [
        ANNEX,
        SIMULATED,
        *(pytest.param(name, marks=pytest.mark.long) for name in FEATURES if name != SIMULATED),
    ],
)
def test_a_world_needs_neither_annex_nor_feature(
    deleted: str, without: Without, tmp_path: Path
) -> None:
    tree = without(deleted)
    done = run(tree, tmp_path, "backend=gloo", *FEW, "output=gloo")
    assert done.returncode == 0, done.stderr
    shown, reported = commands(
        tree, tmp_path, ["show", "gloo"], ["report", "gloo", "--html", "a.html"]
    )
    assert shown.returncode == 0, shown.stderr
    assert "gloo" in reported.stdout and (tmp_path / "a.html").exists()


@pytest.mark.parametrize("deleted", [ANNEX, *FEATURES])
def test_a_file_of_an_annex_or_feature_is_unknown_without_it(
    deleted: str, without: Without, tmp_path: Path
) -> None:
    words = [
        f"{group}={file.stem}"
        for group in ("experiment", "backend", "benchmark", "timing", "launcher")
        for file in sorted((PACKAGE / deleted).glob(f"{group}/*.yaml"))
    ]
    lines = [[word] for word in words]
    for word, refused in zip(words, commands(without(deleted), tmp_path, *lines), strict=True):
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
        assert f"{word} is unknown" in refused.stderr


def test_what_the_annex_would_do_is_refused_in_one_line(without: Without, tmp_path: Path) -> None:
    words = ("backend=simulated", "benchmark=p2p_latency", "pairs=search", "layout=8x1")
    words += ("schedule=rounds",)
    searching, locating = commands(without(ANNEX), tmp_path, words, ["locate"])
    assert searching.returncode == 2
    assert searching.stderr.count("\n") == 1 and "commbench.cluster" in searching.stderr
    assert "commbench.cluster" in locating.stderr


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
    feature: str, key: str, without: Without, tmp_path: Path
) -> None:
    tree = without(f"features/{feature}")
    refused = command(tree, tmp_path, "backend=simulated", key)
    needed = f"{key.lstrip('+')} needs commbench.features.{feature}, which is not there"
    assert (refused.returncode, refused.stderr) == (2, f"commbench: {needed}\n")


def test_an_acceptance_is_refused_without_its_soak(without: Without, tmp_path: Path) -> None:
    words = ["experiment=acceptance", "backend=simulated", "layout=4x2"]
    refused = command(without("features/streams"), tmp_path, *words)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "experiment=acceptance can't run here: (1) timing=soak is unknown" in refused.stderr
    assert "scale=cpu" not in refused.stderr, "it has a soak, too"


@pytest.mark.parametrize(
    ("feature", "words", "user"),
    [
        ("ab", ["ab", "backend=gloo", "--vs", "seed=1"], "commbench ab"),
        ("doctor", ["doctor"], "commbench doctor"),
        ("export", ["export", "runs"], "commbench export"),
        ("other_tools", ["import", "a.log"], "commbench import"),
        ("other_tools", ["osu_bw"], "osu_bw"),
    ],
)
def test_a_command_of_a_feature_is_refused_with_its_name(
    feature: str, words: list[str], user: str, without: Without, tmp_path: Path
) -> None:
    refused = command(without(f"features/{feature}"), tmp_path, *words)
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
    tree = copy_without(tmp_path, f"features/{feature}")
    (tree / "commbench_replay").symlink_to(REPLAY)
    measured, reported, refused = commands(
        tree,
        tmp_path,
        ["backend=simulated", *FEW, "output=runs"],
        ["report", "runs"],
        ["replay", *words],
    )
    assert measured.returncode == 0, measured.stderr
    assert reported.returncode == 0, reported.stderr
    needed = f"{user} needs commbench.features.{feature}, which is not there"
    assert (refused.returncode, refused.stderr) == (2, f"commbench: {needed}\n")


@pytest.mark.parametrize(
    ("feature", "function"),
    [
        ("crossovers", "crossovers"),
        ("launch_overhead", "launch_overhead"),
        ("ramps", "cold_start"),
        ("streams", "soak_intervals"),
    ],
)
def test_a_function_of_a_feature_is_refused_with_its_name(
    feature: str, function: str, without: Without, tmp_path: Path
) -> None:
    program = f"import commbench; commbench.{function}('.')"
    tree = without(f"features/{feature}")
    env = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{packages()}"}
    words = [sys.executable, "-S", "-c", program]
    refused = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
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
        ("simulated", FEW, "simulated"),
    ],
)
def test_rows_of_a_feature_are_read_without_it(
    feature: str, words: tuple[str, ...], seen: str, without: Without, tmp_path: Path
) -> None:
    simulated = ("backend=simulated", "benchmark=all_reduce", f"output={tmp_path / 'runs'}")
    assert main([*simulated, *words]) == 0
    tree = without(f"features/{feature}")
    lines = (("show", "runs"), ("report", "runs"), ("compare", "runs", "runs"))
    for reading, read in zip(lines, commands(tree, tmp_path, *lines), strict=True):
        assert read.returncode == 0, read.stderr
        assert seen in read.stdout or reading[0] == "report"


def test_what_is_not_shown_of_soaks_is_said_with_the_folder_that_shows_it(
    without: Without, tmp_path: Path
) -> None:
    simulated = ("backend=simulated", "benchmark=all_reduce", f"output={tmp_path / 'runs'}")
    assert main([*simulated, *SOAK]) == 0
    line = "soaks over time need commbench.features.streams, which is not there"
    tree = without("features/streams")
    for read in commands(tree, tmp_path, ("show", "runs"), ("report", "runs")):
        assert line in read.stdout


def test_what_is_not_shown_of_launches_in_turn_is_said_with_the_folder_that_shows_it(
    without: Without, tmp_path: Path
) -> None:
    for side in ("base", "new"):
        labelled = (f"label={side}", f"output={tmp_path / 'runs' / side}")
        assert main(["backend=simulated", "benchmark=all_reduce", *FEW, *labelled]) == 0
    line = "comparisons of base and new need commbench.features.ab, which is not there"
    tree = without("features/ab")
    assert line in command(tree, tmp_path, "report", "runs").stdout
    only_base = command(tree, tmp_path, "report", "runs/base").stdout
    assert line not in only_base and "base" in only_base


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("replay", "ddp"), "commbench replay needs commbench_replay, which is not there"),
        (("benchmark=replay",), "benchmark=replay is unknown; commbench-replay has it"),
    ],
)
def test_what_another_distribution_would_do_is_refused_with_the_way_to_install_it(
    words: tuple[str, ...], said: str, without: Without, tmp_path: Path
) -> None:
    refused = command(without(ANNEX), tmp_path, *words)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(f"commbench: {said}: {INSTALL_REPLAY}")
