"""Operations of several groups at once in whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.cli.main import main
from commbench.features.groups.tables import GroupGain, group_gains
from commbench.results.load import load, rows_of_frame

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


@pytest.mark.long
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
@pytest.mark.parametrize("groups", [GRID, LOAD], ids=["grid", "load"])
def test_real_groups_at_once_are_right_and_have_their_times(
    tmp_path: Path, backend: str, groups: str
) -> None:
    words = (f"backend={backend}", "sizes=[64KiB]", "timing=quick", "timing.pass_s=0")
    gains = gains_of(tmp_path, groups, *words)
    assert {gain.operation for gain in gains} >= set(groups.split(" beside ")[0].split(" + "))
