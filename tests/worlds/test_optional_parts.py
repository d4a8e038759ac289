"""What a run can do without: a cache, a fact about the machine. Where it fails, the run measures
and says so in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commbench.hardware.machine_facts import SOURCE_TREE
from commbench.runtime.launchers.mpirun import YIELDING

FIXED = ("timing=fixed", "timing.repetitions=5", "timing.warmup_s=0")
MPI = (
    "commbench",
    *("backend=mpi", "engine=native", "layout=1x2", "benchmark=p2p_latency", "sizes=[8]"),
    *FIXED,
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
    refusals = [line for line in lines if "needs numba" in line]  # a busy machine is named, too
    assert len(refusals) == 1 and "Numba needs NumPy 1; or use engine=python" in refusals[0]


def test_a_git_that_fails_on_one_rank_is_no_difference(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    script = tmp_path / "bin" / "git"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && exit 128\nexec {shutil.which("git")} "$@"\n')
    script.chmod(0o755)
    if not (SOURCE_TREE / ".git").exists():
        pytest.skip("git is asked in a checkout only")
    run = world(
        *("sh", "-c", f'PATH={script.parent}:$PATH exec commbench "$@"', "sh"),
        *("benchmark=barrier", *FIXED),
    )
    assert "ranks differ" not in run.stderr and run.cases.status.to_list() == ["ok"]
    assert run.record["provenance"]["differences"]["versions.error"]["missing"] == [0]
