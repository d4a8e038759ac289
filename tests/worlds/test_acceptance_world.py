"""`commbench experiment=acceptance` as a user runs it: the bad node by name, the rest after an
interruption, and nothing passed that was not measured."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commbench.__main__ import main

SIMULATED = (
    "backend=simulated",
    "backend.model.noise=0.01",
    "backend.model.latency_s=1e-4",
    "sizes=[1KiB]",
)
SHORT = (
    "timing=fixed",
    "timing.repetitions=10",
    "timing.warmup_repetitions=1",
    "timing.duration_s=1",
    "timing.interval_s=0.5",
)
SLOW = ("backend.model.slow_rank=5", "backend.model.slow_factor=2")


def accept(world: Callable[..., Any], *words: str, status: int | None = 0) -> Any:
    return world("commbench", "experiment=acceptance", *words, status=status)


def folder_of(run: Any) -> Path:
    return Path(re.findall(r"^results: (\S+)$", run.stdout, re.MULTILINE)[-1])


def test_a_slow_node_fails_alone_and_in_pairs_and_the_others_pass(
    world: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = accept(world, *SIMULATED, *SHORT, *SLOW, "layout=6x2", status=1)
    assert "Acceptance of 6 nodes: 5 PASS, 1 FAIL, 0 UNDECIDED" in run.stdout
    (line,) = re.findall(r"^node2: FAIL.*$", run.stdout, re.MULTILINE)
    assert line.split() == ["node2:", "FAIL", "-", "FAIL", "FAIL", "-", "PASS", "PASS"]
    assert "node2 fails alone: all_reduce" in run.stdout
    assert "Slurm: --exclude=node2" in run.stdout
    assert "stage rails is left out" in run.stdout
    assert main(["report", str(folder_of(run))]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Acceptance of 6 nodes: 5 PASS, 1 FAIL, 0 UNDECIDED\n"), "verdict first"
    assert line in text and "\nnode0-1,3-5: PASS " in text
    assert "not distinguishable" not in text, "nodes are no alternatives to each other"

    # what is finished is not measured again, what is gone is
    folder = folder_of(run)
    runs = sorted(path.parent for path in folder.glob("*/run.json"))
    stages = [json.loads((path / "run.json").read_text())["config"]["stage"] for path in runs]
    assert stages == ["alone", "pairs", "scaling", "soak"]
    before = {path: (path / "cases.parquet").stat().st_mtime_ns for path in runs}
    shutil.rmtree(runs[-1])
    assert main(["resume", str(folder)]) == 1
    assert "Acceptance of 6 nodes: 5 PASS, 1 FAIL, 0 UNDECIDED" in capsys.readouterr().out
    after = sorted(path.parent for path in folder.glob("*/run.json"))
    assert after[:3] == runs[:3] and len(after) == 4
    assert all((path / "cases.parquet").stat().st_mtime_ns == before[path] for path in after[:3])


def test_512_ranks_are_planned_in_seconds(world: Callable[..., Any]) -> None:
    begun_s = time.monotonic()
    run = accept(world, "backend=simulated", "layout=64x8", "plan=true")
    assert time.monotonic() - begun_s < 20
    assert run.stdout.count("nothing was started") == 4
    titles = re.findall(r"stage=(\w+)", run.stdout)
    assert titles == ["alone", "pairs", "scaling", "soak"]


@pytest.mark.long
def test_one_real_machine_is_measured_and_nothing_passes_that_can_not_be_compared(
    world: Callable[..., Any],
) -> None:
    words = ("backend=gloo", "layout=1x2", "scale=cpu", "sizes=[4KiB]", *SHORT)
    run = accept(world, *words, status=1)
    assert "Acceptance of 1 node: 0 PASS, 0 FAIL, 1 UNDECIDED" in run.stdout
    assert "alone UNDECIDED on all nodes: 1 node can't be ranked" in run.stdout
    assert "stage pairs is left out: layout=1x2 has 2 ranks" in run.stdout
