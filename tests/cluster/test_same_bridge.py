"""Hosts that each have a bridge with the same address, as docker makes it: Open MPI may take it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import AS_ROOT
from virtual_hosts import VirtualHosts

from commbench.core.layout import Layout
from commbench.runtime.launchers.mpirun import Mpirun

pytestmark = pytest.mark.long
BRIDGE = (
    ("link", "add", "docker0", "type", "bridge"),
    ("addr", "add", "172.17.0.1/16", "dev", "docker0"),
    ("link", "set", "docker0", "up"),
)
IMPATIENT = """
import sys
from commbench.__main__ import main
from commbench.runtime import rendezvous
rendezvous.CONNECT_S = 3.0
sys.exit(main(sys.argv[1:]))
"""
WORDS = ("backend=mpi", "backend.library=openmpi", "bind=none", "benchmark=barrier", "timing=quick")


def test_a_world_that_can_not_meet_ends_in_time_with_one_line_that_names_the_cure(
    cluster: Callable[..., VirtualHosts], tmp_path: Path
) -> None:
    hosts = cluster(2)
    for host in hosts.hosts:
        for words in BRIDGE:
            subprocess.run(["ip", "-n", host.name, *words], check=True, timeout=10)
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    launcher = Mpirun(tuple(host.name for host in hosts.hosts), agent=str(hosts.agent))
    worker = (*WORDS, f"output={tmp_path / 'results'}")
    command = launcher.command(Layout(2, 1), worker, "openmpi", sorted(AS_ROOT))
    at = command.index(sys.executable)
    command[at + 1 : at + 3] = [str(script)]
    done = subprocess.run(
        hosts.hosts[0].command(*command),
        env={**os.environ, **AS_ROOT},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = done.stderr.replace("\0", "")  # Open MPI ends its own messages with one
    lines = [line for line in said.splitlines() if line.startswith("commbench: ")]
    assert done.returncode == 3 and len(lines) == 1, done.stderr
    assert "no end of the first exchange over MPI after 3 s" in lines[0]
    assert "choose the network with interface=eth0 (here: docker0 172.17.0.1, eth0 " in lines[0]
