"""Communicators that are opened while the clock runs, in whole worlds: on each backend, and as long
as a loop by hand takes beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from places import HOST_GPU, ROOT, SUPPORT
from shown_gpus import hgx, shown

from commbench.hardware.mpi_library import find

BENCHMARKS = "benchmark=[communicator_init,communicator_split]"
FEW = ("timing=fixed", "timing.repetitions=4", "timing.warmup_repetitions=1", "timing.warmup_s=0")
SCRIPT = SUPPORT / "opened_by_hand.py"
BLOCKS = "30"
LAUNCHES = 3
AGREED = 0.05
LONG = pytest.mark.long


@pytest.mark.parametrize(
    "words",
    [
        ["backend=gloo"],
        ["backend=mpi", "engine=native"],
        pytest.param(["backend=mpi", "engine=python"], marks=LONG),
        pytest.param(
            ["backend=mpi", "engine=[native,python]", "backend.library=mpich"], marks=LONG
        ),
        pytest.param(["backend=tcp"], marks=LONG),
    ],
    ids=["gloo", "openmpi", "openmpi-python", "mpich", "tcp"],
)
def test_communicators_open_in_worlds_smaller_than_the_run(
    world: Callable[..., Any], words: list[str]
) -> None:
    """Other ranks wait meanwhile: torch names groups by how many a process has opened."""
    layouts = ("layout=[1x2,1x3]", "split=[1,2,3]")
    cases = world("commbench", *words, BENCHMARKS, *layouts, *FEW).cases
    bad = cases[cases.status != "ok"]
    assert bad.reason.str.contains("2 ranks can't be split into 3 groups").all()
    assert set(bad.benchmark) == {"communicator_split"} and set(bad.layout) == {"1x2"}
    measured = cases[cases.status == "ok"]
    assert set(measured.until) == {"open", "first_call"} and (measured.median_s > 0).all()
    assert measured.busbw_gb_per_s.isna().all() and (measured.operations_per_sample == 1).all()


def test_nccl_of_torch_opens_and_splits_on_a_stand_in(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """The calls of torch's ProcessGroupNCCL, over gloo: not NCCL."""
    plugin = ("--config-dir", str(HOST_GPU / "conf"), "allow=[host_gpu]", "backend=host_nccl")
    words = ("layout=[1x2,1x3]", "timer=[host_sync,device_event]")
    env = shown(tmp_path, hgx(4), HOST_GPU)
    cases = world("commbench", *plugin, BENCHMARKS, *words, *FEW, env=env).cases
    timed = cases[cases.timer == "host_sync"]
    assert set(timed.status) == {"ok"}, list(timed.reason)
    others = cases[cases.timer != "host_sync"]
    assert others.reason.str.contains("opens a communicator on the host").all()


def test_a_simulated_communicator_opens_in_the_time_of_a_barrier(
    world: Callable[..., Any],
) -> None:
    cases = world("commbench", "backend=simulated", BENCHMARKS, "layout=1x4", *FEW).cases
    by_case = cases.set_index(["benchmark", "until"]).median_s * 1e6
    assert by_case["communicator_init", "open"] == pytest.approx(4.0)
    assert by_case["communicator_init", "first_call"] == pytest.approx(8.0)
    assert by_case["communicator_split", "open"] == pytest.approx(2.0)


def measured_and_by_hand(command: list[str], *words: str) -> tuple[float, float]:
    paths = [str(ROOT), str(SUPPORT), *os.environ.get("PYTHONPATH", "").split(":")]
    env = {**os.environ, "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *words, BLOCKS], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("["))
    measured, by_hand = json.loads(line)
    return measured, by_hand


def launched(backend: str) -> list[str]:
    if backend == "gloo":
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*run, "--nproc-per-node", "2", str(SCRIPT), backend]
    library = find("openmpi")
    assert library is not None
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
    return [library.launcher(), *options, sys.executable, str(SCRIPT), backend]


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.parametrize("until", ["open", "first_call"])
@pytest.mark.parametrize("benchmark", ["communicator_init", "communicator_split"])
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_it_takes_as_long_as_a_loop_by_hand_in_the_same_launch(
    backend: str, benchmark: str, until: str
) -> None:
    """Blocks of both in turn, and the slowest rank of each repetition; the median launch."""
    ratios = []
    for _ in range(LAUNCHES):
        measured, by_hand = measured_and_by_hand(launched(backend), benchmark, until)
        ratios.append(measured / by_hand)
    assert median(ratios) == pytest.approx(1, abs=AGREED), ratios
