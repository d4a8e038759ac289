"""One of six nodes of a Slurm has a slow link: a search in a job names it, in the world that srun
has started and in one that it starts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from slurm_cluster import SlurmCluster, missing, slurm_cluster
from virtual_hosts import SEARCH_WORDS, Link

pytestmark = [pytest.mark.long, pytest.mark.serial]
NODES = 6
PLANTED = 4
WORDS = (
    "backend=gloo",
    "benchmark=p2p_bandwidth",  # latencies say nothing where more ranks than cores wait for a core
    "sizes=[32KiB]",
    *SEARCH_WORDS,
)
STEP = ("srun", f"--nodes={NODES}", "--ntasks-per-node=1", "--mpi=none", "python", "-m")
SALLOC = ("salloc", "--quiet", f"--nodes={NODES}", "--ntasks-per-node=1")
COMMANDS = {
    "given": (*STEP, "commbench", "locate", *WORDS),
    "started": (*SALLOC, "commbench", "locate", "launcher=srun", f"layout={NODES}x1", *WORDS),
}


@pytest.fixture(scope="module")
def slow_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_cluster(NODES, folder, Link(100.0), {PLANTED: Link(25.0)}) as cluster:
        yield cluster


@pytest.mark.parametrize("command", COMMANDS)
def test_the_node_with_a_slow_link_is_named_with_the_option_that_leaves_it_out(
    slow_node: SlurmCluster, world: Callable[..., Any], command: str
) -> None:
    run = world(*slow_node.command(*COMMANDS[command]), status=1)
    name = slow_node.hosts.hosts[PLANTED].name
    assert run.record["world"]["launcher"] == "srun"
    assert run.record["search"]["bad"] == [name], run.explain()
    assert f"Slurm: --exclude={name}" in run.stdout
