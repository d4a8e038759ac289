"""One of eight virtual hosts has a slow link: a search names it, and names none of eight equal
ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from test_mpi_virtual_hosts import mpirun
from torchrun_agents import torchrun_agents
from virtual_hosts import SEARCH_WORDS, VirtualHosts

from commbench.runtime.launchers.mpirun import YIELDING

pytestmark = [pytest.mark.long, pytest.mark.serial]
HOSTS = 8
PLANTED = 5
RATE_MBIT = 100.0
SLOW: Mapping[int, float] = {PLANTED: 25.0}
WORDS = (
    "layout=8x1",
    "sizes=[8,64KiB]",
    *SEARCH_WORDS,
)


def gloo(hosts: VirtualHosts, world: Callable[..., Any]) -> Any:
    return torchrun_agents(
        world,
        [host.command for host in hosts.hosts],
        1,
        "locate",
        "backend=gloo",
        *WORDS,
        address=hosts.hosts[0].address,
        status=None,
    )[0]


def open_mpi(hosts: VirtualHosts, world: Callable[..., Any]) -> Any:
    command = mpirun(hosts, "openmpi", 1)
    after = command.index("commbench") + 1
    words = [*command[:after], "locate", *command[after:], *WORDS]
    return world(*words, env=YIELDING, status=None)


LIBRARIES = pytest.mark.parametrize("searched", [gloo, open_mpi])


@LIBRARIES
def test_the_host_with_a_slow_link_is_found(
    cluster: Callable[..., VirtualHosts],
    world: Callable[..., Any],
    searched: Callable[..., Any],
) -> None:
    hosts = cluster(HOSTS, rate_mbit=RATE_MBIT, slow=SLOW)
    run = searched(hosts, world)
    name = hosts.hosts[PLANTED].name
    assert run.record["search"]["bad"] == [name], run.explain()
    assert run.record["search"]["rounds"] <= 8
    # prterun of Open MPI 5 may crash or hang when its ranks exit with 1
    assert run.status != 0


@LIBRARIES
def test_of_equal_hosts_none_is_named(
    cluster: Callable[..., VirtualHosts],
    world: Callable[..., Any],
    searched: Callable[..., Any],
) -> None:
    run = searched(cluster(HOSTS, rate_mbit=RATE_MBIT), world)
    assert run.record["search"]["bad"] == [], run.explain()
