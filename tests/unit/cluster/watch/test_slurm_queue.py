"""Which jobs of Slurm keep a measurement from a host: programs in place of Slurm's clients, which
print what theirs do; tests/cluster has a real one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from commbench.cluster.watch.slurm_queue import jobs_in_the_way

HOST = socket.gethostname()
SINFO = f"n07|other|main\nn08|{HOST}|main\nn08|{HOST}|long\n"


def install(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only programs on PATH; this host is node n08 of two partitions, and nothing runs."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    install(tmp_path, "sinfo", f"printf '{SINFO}'".replace("\n", "\\n"))
    queue(tmp_path)
    return tmp_path


def queue(folder: Path, on_node: str = "", pending: str = "") -> None:
    """A squeue that answers the two questions, and records what it was asked."""
    script = f"""echo "$@" >> {folder}/asked
case "$*" in
  *--nodelist*n08*) printf '{on_node}' ;;
  *--partition*main,long*PENDING*) printf '{pending}' ;;
  *) exit 7 ;;
esac"""
    install(folder, "squeue", script)


def test_without_slurm_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert jobs_in_the_way({}) is None


def test_a_free_node_is_measured(clients: Path) -> None:
    assert jobs_in_the_way({}) is None
    asked = (clients / "asked").read_text()
    assert "--nodelist n08" in asked and "--partition main,long" in asked


def test_a_job_on_this_node_is_in_the_way(clients: Path) -> None:
    queue(clients, on_node="17\\n18\\n")
    assert jobs_in_the_way({}) == "job 17, 18 of Slurm runs on n08"


def test_the_job_of_this_process_is_not_in_the_way_and_none_that_waits_for_its_node(
    clients: Path,
) -> None:
    queue(clients, on_node="17\\n", pending="19|Resources\\n")
    assert jobs_in_the_way({"SLURM_JOB_ID": "17"}) is None
    assert jobs_in_the_way({"SLURM_JOB_ID": "5"}) == "job 17 of Slurm runs on n08"


@pytest.mark.parametrize("reason", ["Resources", "Priority", "None"])
def test_a_job_that_waits_for_a_node_is_in_the_way(clients: Path, reason: str) -> None:
    queue(clients, pending=f"19|{reason}\\n")
    assert jobs_in_the_way({}) == "job 19 of Slurm waits for a node of partition main,long"


@pytest.mark.parametrize("reason", ["Dependency", "JobHeldUser", "BeginTime"])
def test_a_job_that_would_not_start_anyway_is_not(clients: Path, reason: str) -> None:
    queue(clients, pending=f"19|{reason}\\n")
    assert jobs_in_the_way({}) is None


def test_a_host_that_is_no_node_is_measured(clients: Path) -> None:
    install(clients, "sinfo", "echo 'n07|other|main'")
    queue(clients, on_node="17\\n")
    assert jobs_in_the_way({}) is None


def test_a_slurm_that_does_not_answer_is_in_the_way_and_says_why(clients: Path) -> None:
    install(clients, "squeue", "echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    assert jobs_in_the_way({}) == "squeue failed: slurm_load_jobs error: Unable to contact"


def test_programs_of_slurm_that_belong_to_no_cluster_are_no_slurm(clients: Path) -> None:
    """As Debian's packages are before anybody writes a slurm.conf."""
    lines = "sinfo: error: fetch_config: DNS SRV lookup failed\\nsinfo: fatal: Could not establish"
    install(clients, "sinfo", f"printf '{lines} a configuration source' >&2; exit 1")
    assert jobs_in_the_way({}) is None
