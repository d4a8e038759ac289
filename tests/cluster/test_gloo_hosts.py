"""gloo between hosts whose own name is a loopback address, as Debian installs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torchrun_agents import torchrun_agents
from virtual_hosts import Host, VirtualHosts

pytestmark = pytest.mark.long
OWN_NAME = (
    'sed "s/^[0-9.]* $(hostname)$/127.0.1.1 $(hostname)/" /etc/hosts > "$0";'
    ' mount --bind "$0" /etc/hosts; exec "$@"'
)
WORDS = (
    "backend=gloo",
    "bind=none",
    "benchmark=all_reduce",
    "sizes=[8]",
    "timing=fixed",
    "timing.repetitions=5",
    "timing.warmup_s=0",
)


def debian(host: Host) -> Callable[..., Sequence[str]]:
    """The command line that runs its words on a host whose own name is 127.0.1.1."""
    hosts_file = str(host.enter.parent / f"hosts-{host.name}")

    def enter(*words: str) -> Sequence[str]:
        return host.command("sh", "-ec", OWN_NAME, hosts_file, *words)

    return enter


def on_hosts(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any], **more: Any
) -> list[Any]:
    hosts = cluster(2)
    address = hosts.hosts[0].address
    nodes = [debian(host) for host in hosts.hosts]
    return torchrun_agents(world, nodes, 1, *WORDS, address=address, **more)


def test_gloo_takes_the_route_to_the_other_hosts(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    run = on_hosts(cluster, world)[0]
    assert set(run.cases.status) == {"ok"} and set(run.cases.layout) == {"2x1"}


def test_where_gloo_can_not_connect_one_line_names_the_cure(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    """The variable that the user exports counts, though it names the wrong interface."""
    runs = on_hosts(cluster, world, env={"GLOO_SOCKET_IFNAME": "lo"}, status=None)
    lines = [
        line for run in runs for line in run.stderr.splitlines() if line.startswith("commbench: ")
    ]
    named = [line for line in lines if "choose the network with interface=eth0" in line]
    assert len(named) == 1 and "gloo can't connect rank 1" in named[0], lines
    # rank 0, whom gloo tells nothing, may add that rank 1 has ended
    assert len(lines) <= 2, lines
