"""Fixtures for worlds of several nodes on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import pytest
import slurm_cluster
from slurm_cluster import SlurmCluster
from virtual_hosts import Link, VirtualHosts, missing, virtual_hosts


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., VirtualHosts]]:
    """cluster(2, rate_mbit=200): hosts until the test ends, however it ends; a skip where the
    machine can't."""
    with ExitStack() as stack:

        def make(
            count: int,
            rate_mbit: float | None = None,
            delay_ms: float | None = None,
            slow: Mapping[int, float] = MappingProxyType({}),
        ) -> VirtualHosts:
            link = Link(rate_mbit, delay_ms)
            others = {host: Link(mbit, delay_ms) for host, mbit in slow.items()}
            reason = missing(link)
            if reason is not None:
                pytest.skip(reason)
            return stack.enter_context(virtual_hosts(count, tmp_path / "hosts", link, others))

        yield make


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Two idle nodes for all tests of a file; a skip where the machine can't."""
    reason = slurm_cluster.missing()
    if reason is not None:
        pytest.skip(reason)
    with slurm_cluster.slurm_cluster(2, tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
