"""The switches of hosts from Slurm: what scontrol prints, and what is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.cluster.search.slurm_switches import slurm_switches, switches_of

TOPOLOGY = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[01-03]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[04-05],m1
SwitchName=spine Level=1 LinkSpeed=1 Nodes=m1,n[01-05] Switches=leaf[1-2]
"""
JOB = {"SLURM_JOB_NODELIST": "n[01-02,04]"}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that prints the file `topology`; there is no other on the PATH."""
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\n[ "$*" = "show topology" ] && exec cat {tmp_path}/topology\n')
    program.chmod(0o755)
    (tmp_path / "topology").write_text(TOPOLOGY)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    return program


def test_only_the_lowest_switches_are_those_of_nodes() -> None:
    assert switches_of(TOPOLOGY) == {
        **dict.fromkeys(("n01", "n02", "n03"), "leaf1"),
        **dict.fromkeys(("n04", "n05", "m1"), "leaf2"),
    }
    assert switches_of("") == {}


@pytest.mark.usefixtures("scontrol")
def test_hosts_are_found_by_their_names_or_by_the_order_of_the_job() -> None:
    by_name = {"n01": "leaf1", "n02": "leaf1", "n04": "leaf2"}
    assert slurm_switches(["n01", "n02", "n04"], JOB) == by_name
    assert slurm_switches(["a", "b", "c"], JOB) == {"a": "leaf1", "b": "leaf1", "c": "leaf2"}


@pytest.mark.usefixtures("scontrol")
def test_outside_of_a_job_slurm_is_not_asked() -> None:
    assert slurm_switches(["n01"], {}) == {}


def test_a_slurm_without_topology_or_without_scontrol_names_none(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol.write_text("#!/bin/sh\necho 'no topology plugin' >&2; exit 1\n")
    assert slurm_switches(["n01"], JOB) == {}
    monkeypatch.setenv("PATH", str(scontrol.parent / "empty"))
    assert slurm_switches(["n01"], JOB) == {}
