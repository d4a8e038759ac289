"""Operations of several groups at once in whole runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import HOST_GPU
from shown_gpus import hgx, shown

from commbench.cli.main import main
from commbench.features.groups.tables import GroupGain, group_gains
from commbench.results.load import find_runs, load, read_case_rows, rows_of_frame
from commbench.results.recorded import recorded_samples, repetition_seconds

PLUGIN = ["--config-dir", str(HOST_GPU / "conf"), "allow=[host_gpu]", "backend=host_nccl"]
COPY = "all_gather@world + copy_d2h@world=96KiB + copy_h2d@1"
GRID = "all_reduce@tp2 + all_gather@dp2=32KiB"
LOAD = "p2p_latency@0-1=8 beside all_reduce@2-3"


def gains_of(tmp_path: Path, groups: str, *words: str) -> list[GroupGain]:
    command = ("layout=1x4", "benchmark=concurrent", f"groups='{groups}'", f"output={tmp_path}")
    assert main([*command, *words]) == 0
    rows = rows_of_frame(load(tmp_path))
    assert {row.status for row in rows} == {"ok"}
    assert all(row.busbw_gb_per_s is None for row in rows)
    return group_gains(rows)


def test_a_simulated_world_without_contention_slows_nothing_and_wins_the_shorter_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("backend=simulated", "sizes=[64KiB]", "timing=fixed", "timing.repetitions=10")
    gains = {gain.operation: gain for gain in gains_of(tmp_path, GRID, *words)}
    first, second = (gains[text] for text in GRID.split(" + "))
    assert first.slowdown and second.slowdown
    assert (first.slowdown.value, second.slowdown.value) == pytest.approx((1.0, 1.0), rel=0.05)
    gain = gains[GRID].gain
    expected = 1 + second.alone.value / first.alone.value
    assert gain is not None and gain.value == pytest.approx(expected, rel=0.05)
    assert "gain" in capfd.readouterr().out
    assert main(["report", str(tmp_path)]) == 0
    assert "Groups at once\n" in capfd.readouterr().out


def test_stored_samples_of_a_timed_operation_give_the_time_of_its_row(tmp_path: Path) -> None:
    """Only its ranks count: those of the load beside it repeat more slowly."""
    words = ("backend=simulated", "sizes=[64KiB]", "timing=fixed", "timing.repetitions=10")
    gains_of(tmp_path, LOAD, *words)
    (run,) = find_runs(tmp_path)
    for row in read_case_rows([tmp_path]):
        samples = recorded_samples(run, [row.case_id])[row.case_id]
        assert np.median(repetition_seconds(row, samples)) == pytest.approx(row.median_s)


def test_a_simulated_copy_takes_no_time_beside_a_longer_collective(tmp_path: Path) -> None:
    """The model's: 64 KiB at 25 GB/s, beside three rounds of 64 KiB at 10 GB/s."""
    words = ("backend=simulated", "sizes=[256KiB]", "timing=fixed", "timing.repetitions=10")
    copied = "copy_d2h@world=64KiB"
    gains = {
        gain.operation: gain for gain in gains_of(tmp_path, f"all_gather@world + {copied}", *words)
    }
    copy = gains[copied]
    assert copy.alone.value == pytest.approx(2**16 / 25e9, rel=0.2)
    assert copy.slowdown is not None and copy.slowdown.value == pytest.approx(1, rel=0.1)
    assert gains["all_gather@world"].alone.value > 5 * copy.alone.value


def test_copies_beside_a_collective_are_exact_and_have_their_times(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """On torch's CPU tensors: a copy is done when it is waited for, and no earlier."""
    run = world(
        "commbench", *PLUGIN, "layout=1x2", "benchmark=concurrent", f"groups='{COPY}'",
        "sizes=[64KiB]", "timing=fixed", "timing.repetitions=5", "cache=rotate",
        "timer=[host_sync,device_event,throughput,graph]", env=shown(tmp_path, hgx(2), HOST_GPU),
    )  # fmt: skip
    beside = run.cases.groups.str.contains("[", regex=False)
    refused = beside & (run.cases.timer == "graph")
    assert set(run.cases[~refused].status) == {"ok"} and (run.cases[~refused].median_s > 0).all()
    assert (run.cases[~refused].wrong_elements == 0).all()
    assert refused.sum() == 3 and run.cases[refused].reason.str.contains("device_event").all()
    assert {*COPY.split(" + "), COPY} <= set(run.cases[run.cases.timer == "graph"].groups)


def test_without_a_gpu_a_copy_beside_a_collective_is_skipped_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("backend=gloo", "layout=1x2", "benchmark=concurrent", f"groups='{COPY}'", "plan=true")
    assert main([*words, "sizes=[8]", f"output={tmp_path}"]) == 0
    assert "use backend=nccl" in capfd.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
@pytest.mark.parametrize("groups", [GRID, LOAD], ids=["grid", "load"])
def test_real_groups_at_once_are_right_and_have_their_times(
    tmp_path: Path, backend: str, groups: str
) -> None:
    words = (f"backend={backend}", "sizes=[64KiB]", "timing=quick", "timing.pass_s=0")
    gains = gains_of(tmp_path, groups, *words)
    assert {gain.operation for gain in gains} >= set(groups.split(" beside ")[0].split(" + "))
