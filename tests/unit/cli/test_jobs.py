"""Sweeps through Hydra's launchers without a cluster; tests/cluster/test_slurm.py has one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commbench.cli.jobs import launcher_below
from commbench.cli.main import main
from commbench.config.compose import ConfigComposer
from commbench.runtime.launchers.srun import Srun

pytest.importorskip(
    "hydra_plugins.hydra_submitit_launcher", reason="pip install 'commbench[slurm]'"
)

SLURM = "hydra/launcher=submitit_slurm"
FAST = (
    "benchmark=p2p_latency",
    "sizes=[8]",
    "timing=fixed",
    "timing.repetitions=5",
    "timing.warmup_s=0",
)


@pytest.fixture
def swept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """swept(words): exit status, stdout and stderr of `commbench -m`, in this process: no job of it
    starts processes."""

    def sweep(*words: str) -> tuple[int, str, str]:
        status = main(["-m", *words, *FAST, f"output={tmp_path / 'results'}"])
        return (status, *capsys.readouterr())

    return sweep


@pytest.mark.parametrize(
    ("launcher", "below"), [("basic", None), ("submitit_local", None), ("submitit_slurm", Srun())]
)
def test_only_slurm_jobs_start_the_ranks(launcher: str, below: Srun | None) -> None:
    with ConfigComposer() as composer:
        config = composer.hydra_config([f"hydra/launcher={launcher}", "layout=1x2,2x1"])
    assert launcher_below(config) == below


def test_without_srun_one_line_says_so(
    swept: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = (
        "commbench: hydra/launcher=submitit_slurm: there is no srun here; start on a host of the"
        " Slurm cluster\n"
    )
    assert swept(SLURM, "layout=1x2,2x1") == (2, "", expected)
    assert not (tmp_path / "results").exists()


def test_a_layout_that_this_machine_has_not_is_planned_for_the_cluster(
    swept: Callable[..., tuple[int, str, str]],
) -> None:
    status, out, err = swept(SLURM, "layout=1x2,4x2", "pairs=[[0,1]]", "plan=true")
    assert status == 0, err
    assert (
        "p2p_latency 0-1 8 B" in " ".join(out.split())
        and "every case: layout 4x2, dtype float32" in out
        and out.count("nothing was started") == 2
    )
    found = re.findall(r"(?:measure,|jobs:) about [\d.]+ m?s to ([\d.]+) min", out)
    *each_min, all_min = map(float, found)
    assert len(each_min) == 2 and all_min == pytest.approx(sum(each_min), rel=0.05)


def test_a_launcher_that_is_not_installed_is_named(
    swept: Callable[..., tuple[int, str, str]],
) -> None:
    status, _, err = swept("hydra/launcher=pbs", "layout=1x2")
    assert status == 2
    assert err.startswith("commbench: hydra/launcher=pbs is unknown; allowed: ")
    assert "submitit_slurm" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("hydra.launcher._target_=os.system", "hydra/launcher can't be used: Invalid plugin"),
        ("+hydra.launcher.n_jobs=2", "this hydra/launcher measures jobs at the same time"),
    ],
)
def test_a_launcher_that_can_not_be_used_is_one_line(
    swept: Callable[..., tuple[int, str, str]], word: str, message: str
) -> None:
    status, _, err = swept(word, "backend=simulated", "sizes=[8],[16]")
    assert status == 2
    assert err.startswith(f"commbench: {message}") and err.count("\n") == 1


def test_a_launcher_of_processes_runs_all_jobs_and_the_worst_is_the_status(
    world: Callable[..., Any],
) -> None:
    axes = ("layout=1x2,2x1", "expect='nodes<2'")
    run = world(
        "commbench",
        "-m",
        "hydra/launcher=submitit_local",
        "backend=simulated",
        *axes,
        *FAST,
        status=1,
    )
    runs = [json.loads(file.read_text()) for file in run.output.glob("*/run.json")]
    assert {record["world"]["nodes"]: record["exit_status"] for record in runs} == {1: 0, 2: 1}
    assert len({record["sweep_id"] for record in runs}) == 1


@pytest.mark.parametrize(
    ("word", "headings"),
    [
        ("label=one,two", {"one", "two"}),
        ("cuda_ipc=on,off", {"cuda_ipc"}),
        ("env.COLOUR=red,blue", {"COLOUR=red", "COLOUR=blue"}),
        ("trial=0,1", set()),
    ],
)
def test_a_sweep_of_one_backend_ends_with_one_table_of_what_differs(
    swept: Callable[..., tuple[int, str, str]], word: str, headings: set[str]
) -> None:
    status, out, _ = swept("backend=simulated", "layout=1x2", word)
    assert status == 0
    tables = [line for line in out.splitlines() if line.split()[:1] == ["p2p_latency"]]
    heads = set(" ".join(line for line in tables if "±" in line).split())
    assert headings <= heads
    assert len(tables) == (1 if headings else 2), "launches have a table each"
