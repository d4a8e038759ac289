"""One of eight virtual hosts has a slow link, or one of four with two ranks each: a search names
it, and names none of equal ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
# latencies say nothing where more ranks than cores wait for a core
WORDS = ("benchmark=p2p_bandwidth", "sizes=[32KiB]", *SEARCH_WORDS)


def gloo(
    hosts: VirtualHosts, world: Callable[..., Any], each: int = 1, words: Sequence[str] = WORDS
) -> Any:
    return torchrun_agents(
        world,
        [host.command for host in hosts.hosts],
        each,
        "locate",
        "backend=gloo",
        f"layout={len(hosts.hosts)}x{each}",
        *words,
        address=hosts.hosts[0].address,
        status=None,
    )[0]


def open_mpi(hosts: VirtualHosts, world: Callable[..., Any]) -> Any:
    command = mpirun(hosts, "openmpi", 1)
    after = command.index("commbench") + 1
    words = [*command[:after], "locate", *command[after:], f"layout={HOSTS}x1", *WORDS]
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


@pytest.mark.parametrize("slow", [{2: 25.0}, {}], ids=["one slow", "all equal"])
def test_of_four_hosts_with_two_ranks_each_the_slow_one_is_named(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any], slow: Mapping[int, float]
) -> None:
    hosts = cluster(4, rate_mbit=RATE_MBIT, slow=slow)
    # smaller messages: both ranks of a host share its link, and the search takes up to 140 rounds
    run = gloo(hosts, world, each=2, words=(*WORDS, "sizes=[8KiB]"))
    search = run.record["search"]
    assert search["bad"] == [hosts.hosts[host].name for host in slow], run.explain()
    if slow:
        assert run.status != 0
        assert run.stdout.splitlines()[0].startswith(
            f"SLOWER: {search['bad'][0]}; Slurm: --exclude="
        )
