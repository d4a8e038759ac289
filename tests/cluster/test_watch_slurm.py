"""`commbench watch` on a node of a real Slurm: it steps aside for a job there, and for one that
waits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import until
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.long
ASK = "from commbench.cluster.watch.slurm_queue import jobs_in_the_way; print(jobs_in_the_way())"


def in_the_way(slurm: SlurmCluster) -> str:
    """What the first node answers."""
    return slurm.client_output(sys.executable, "-c", ASK).strip()


def test_a_turn_steps_aside_for_jobs_that_run_and_that_wait(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    assert in_the_way(slurm) == "None"
    first = slurm.names[0]
    held = submit(slurm, "--hold", "--wrap", "true")
    assert in_the_way(slurm) == "None", "a held job waits for nothing"
    other = submit(slurm, f"--nodelist={slurm.names[1]}", "--exclusive", "--wrap", "sleep 60")
    until(lambda: "RUNNING" in states(slurm), 20, slurm.explain)
    assert in_the_way(slurm) == "None", "a job on the other node"
    waiting = submit(slurm, "--nodes=2", "--exclusive", "--wrap", "true")
    until(lambda: waiting in in_the_way(slurm), 20, slurm.explain)
    assert in_the_way(slurm) == f"job {waiting} of Slurm waits for a node of partition main"
    slurm.client_output("scancel", waiting)
    own = submit(slurm, f"--nodelist={first}", "--wrap", "sleep 60")
    runs = f"job {own} of Slurm runs on {first}"  # it waits for a node at first
    until(lambda: in_the_way(slurm) == runs, 20, slurm.explain)
    slurm.client_output("scancel", own, other, held)


def submit(slurm: SlurmCluster, *words: str) -> str:
    return slurm.client_output("sbatch", "--parsable", "--output=/dev/null", *words).strip()


def states(slurm: SlurmCluster) -> list[str]:
    return slurm.client_output("squeue", "--noheader", "--format=%T").split()
