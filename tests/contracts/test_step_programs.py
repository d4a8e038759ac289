"""Programs of several groups through whole runs: the groups are open before the first case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from places import SUPPORT

GRID = SUPPORT / "step_programs"
REDUCED_S = 2 * (2e-6 + 20_000 / 2 / 10e9)  # of two ranks, by the model's defaults: a ring


def grid(world: Callable[..., Any], *words: str) -> Any:
    return world(
        "commbench",
        "--config-dir",
        str(GRID / "conf"),
        "allow=[grid]",
        "benchmark=grid",
        "sizes=[20kB]",
        "layout=1x4",
        "timing=fixed",
        "timing.repetitions=5",
        "timing.warmup_s=0",
        *words,
        env={"PYTHONPATH": str(GRID)},
    )


@pytest.mark.parametrize(
    "backend",
    [
        "backend=gloo",
        # groups of MPI in both engines: tests/unit/backends/test_mpi.py
        pytest.param("backend=mpi engine=[python,native]", marks=pytest.mark.long),
        pytest.param("backend=mpi backend.library=mpich", marks=pytest.mark.long),
    ],
)
def test_rows_and_columns_of_a_grid_run_at_once_and_are_exact(
    world: Callable[..., Any], backend: str
) -> None:
    cases = grid(world, *backend.split()).cases
    assert set(cases.status) == {"ok"} and (cases.wrong_elements == 0).all()
    unknown = ("busbw_gb_per_s", "limit_gb_per_s", "efficiency", "wire_gb_per_s")
    assert cases[[*unknown]].isna().all(axis=None)


def test_in_the_simulated_world_groups_do_not_slow_one_another(world: Callable[..., Any]) -> None:
    (case,) = grid(world, "backend=simulated").cases.itertuples()
    assert (case.status, case.wrong_elements) == ("ok", 0)
    assert case.median_s == pytest.approx(REDUCED_S, abs=3e-7)


def test_a_backend_without_collectives_skips_groups_with_a_reason(
    world: Callable[..., Any],
) -> None:
    (case,) = grid(world, "backend=tcp").cases.itertuples()
    assert case.status == "skipped" and "point to point only" in case.reason
