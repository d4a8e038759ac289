"""The switch of each node as Slurm's topology/tree has it (`scontrol show topology`)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from commbench.core.errors import ConfigError
from commbench.hardware.sources import run_command
from commbench.runtime.launchers.host_list import hosts_of_words

TOPOLOGY_COMMAND = ("scontrol", "show", "topology")
TOPOLOGY_TIMEOUT_S = 10.0
# SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-8]; other levels list the switches below them
LEAF_LEVEL = "0"
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")


def switches_of(topology: str) -> dict[str, str]:
    """The leaf switch of each node in the text of that command; empty where it names none."""
    switches = {}
    for line in topology.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if fields.get("Level") == LEAF_LEVEL and {"SwitchName", "Nodes"} <= fields.keys():
            for node in hosts_of_words([fields["Nodes"]]):
                switches[node] = fields["SwitchName"]
    return switches


def slurm_switches(hosts: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The switch of each of these hosts, of a job of Slurm; empty where Slurm knows none.

    A host may have another name than its node: then the job's list of nodes has the same order.
    """
    listed = next((environ[name] for name in NODE_LISTS if name in environ), None)
    if listed is None or shutil.which(TOPOLOGY_COMMAND[0]) is None:
        return {}
    done = run_command(TOPOLOGY_COMMAND, TOPOLOGY_TIMEOUT_S)
    if done is None or done.returncode != 0:
        return {}
    try:
        switches = switches_of(done.stdout)
        nodes = hosts_of_words([listed])
    except ConfigError:  # a list that only a later Slurm writes
        return {}
    names = dict(zip(hosts, nodes, strict=True)) if len(nodes) == len(hosts) else {}
    by_host = {host: switches.get(host) or switches.get(names.get(host, "")) for host in hosts}
    return {host: switch for host, switch in by_host.items() if switch is not None}
