"""The command line: what needs no world is quick, imports no torch, and a lost rank never starts
worlds of its own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from shell_commands import HEAVY, SCRIPT, command, listing_command

import commbench
from commbench.__main__ import main
from commbench.cli import main as main_module
from commbench.runtime.exit_protocol import read_ends

pytestmark = pytest.mark.usefixtures("outside_any_world")
CONF = Path(commbench.__file__).parents[1] / "conf"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--help"], 0),
        (["-m", "backend=gloo,foo", "plan=true"], 2),
        (["plan=true", "layout=2x4"], 2),
    ],
    ids=str,
)
def test_what_needs_no_world_prints_an_answer_or_a_refusal_and_imports_no_torch(
    words: list[str], status: int
) -> None:
    done, imported = listing_command(*words)
    assert "argparse" in imported  # the listing is what it seems
    assert imported & HEAVY == set()
    assert done.returncode == status
    assert (done.stderr == "") != (done.stdout == "")


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
    (soak,) = (CONF.parent / "commbench/features").glob("*/timing/soak.yaml")
    own = [line for line in soak.read_text().splitlines() if line.startswith("duration_s")]
    assert "\n".join(["# timing=soak: timing.KEY=VALUE", *own]) in keys, "of a feature"
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


def test_a_sweep_over_nothing_is_refused(called: Callable[..., tuple[int, str, str]]) -> None:
    status, _, err = called("-m")
    assert (status, err.count("\n")) == (2, 1) and "-m backend=gloo,mpi" in err


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


@pytest.mark.parametrize("option", ["--keys", "--operations"])
def test_a_reader_that_has_seen_enough_is_no_error(option: str) -> None:
    """As in `commbench --keys | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "commbench", option]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
