"""What a run can do without: a cache, a fact about the machine. Where it fails, the run measures
and says so in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commbench.launchers.mpirun import YIELDING

MPI = (
    "commbench",
    *("backend=mpi", "engine=native", "layout=1x2", "benchmark=p2p_latency", "sizes=[8]"),
    *("timing=fixed", "timing.repetitions=5", "timing.warmup_s=0"),
)


@pytest.mark.long
def test_a_native_engine_without_a_cache_is_compiled_and_said_once(
    started_world: Callable[..., Any],
) -> None:
    run = started_world(
        *MPI,
        env={
            **YIELDING,
            "NUMBA_CACHE_DIR": "/dev/null/numba",
            "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
        },
    )
    assert run.stderr.count("numba's cache can't be used") == 1, run.explain()
    assert run.cases.status.to_list() == ["ok"]


def test_a_numba_that_can_not_be_imported_is_refused_in_one_line(
    started_world: Callable[..., Any], tmp_path: Path
) -> None:
    shadow = tmp_path / "shadow" / "numba"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ImportError('Numba needs NumPy 1')\n")
    run = started_world(*MPI, env={**YIELDING, "PYTHONPATH": str(shadow.parent)}, status=2)
    lines = [line for line in run.stderr.splitlines() if line.startswith("commbench: ")]
    assert lines == ["commbench: engine=native needs numba: Numba needs NumPy 1; use engine=python"]
