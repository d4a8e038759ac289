"""What rank 0 gathers about data paths."""

from __future__ import annotations

from typing import Any

import pytest
from places import HARDWARE_TEXTS
from read_nccl_logs import read

from commbench.core.case import World
from commbench.hardware import nvml
from commbench.hardware.link_limits import Limit, interface_limit
from commbench.hardware.topology import TOPOLOGY_FACT, RankGpu, node_record
from commbench.measure.nccl_evidence import NcclEvidence
from commbench.measure.transport_facts import gather_evidence, route_interfaces
from commbench.measure.transports import TransportEvidence

H100 = {
    "gpu.0.pci_bus_id": "0000:00:00.0",
    "gpu.1.pci_bus_id": "0000:01:00.0",
    "gpu.0.compute_capability": "9.0",
    "gpu.0.nvlink_links": 18,
    "gpu.1.compute_capability": "9.0",
}
LOG = (HARDWARE_TEXTS / "nccl_2.21_shm.txt").read_text()
BUS = ("0000:00:00.0", "0000:01:00.0")
ETHERNET = interface_limit("eth0", 25_000.0)
PORT = {"network.rdma.mlx5_0:1.state": "ACTIVE", "network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0}
TWO = PORT | {
    "network.rdma.mlx5_1:1.state": "ACTIVE",
    "network.rdma.mlx5_1:1.rate_gbit_per_s": 400.0,
}


class Control:
    """Of a world in which all ranks tell the same."""

    def __init__(self, size: int) -> None:
        self._size = size

    def gather(self, value: Any, deadline_s: float, meeting: str = "") -> list[Any]:
        return [value] * self._size


def test_all_ranks_tell_and_rank_0_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [
        nvml.Gpu(0, pci_bus_id=BUS[0], pcie_generation=5, pcie_width=16, nvlink_links=17),
        nvml.Gpu(1),  # has fallen off the bus
    ]
    monkeypatch.setattr(nvml, "gpus", lambda: gpus)
    run = {
        "provenance": {"nodes": [H100]},
        "wiring": [node_record({TOPOLOGY_FACT: (HARDWARE_TEXTS / "topo_h100x8.txt").read_text()})],
    }
    run |= {"gpus": [{"gpu.own.pci_bus_id": BUS[0]}, {"gpu.own.pci_bus_id": BUS[1]}]}
    reader = read((LOG, (0, 1, 2, 3)))
    facts = {"nccl_log": LOG}
    evidence = gather_evidence(World(0, 2, ((0, 1),), (0,)), Control(2), facts, run, reader)  # type: ignore[arg-type]
    # what the rank reads itself counts before the facts of its node
    assert evidence.gpus == (
        RankGpu(0, 0, BUS[0], 90, pcie_generation=5, pcie_width=16, nvlinks=17),
        RankGpu(0, 1, BUS[1], 90),
    )
    assert (
        set(evidence.topologies) == {0}
        and evidence.reported.within is None
        and evidence.nccl.logged
    )
    assert evidence.nccl.kinds == reader.kinds != {}
    other = World(1, 2, ((0, 1),), (1,))
    assert gather_evidence(other, Control(2), {}, {}, NcclEvidence()) == TransportEvidence()  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "nodes"), [("ACTIVE", {1}), ("DOWN", set())])
def test_nodes_with_an_active_port_are_known(state: str, nodes: set[int]) -> None:
    unknown = {"network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0}
    provenance = [
        {"network.rdma.mlx5_0:1.state": "DOWN"},
        {"network.rdma.mlx5_0:1.state": state},
        unknown,
    ]
    world = World(0, 3, ((0,), (1,), (2,)), (0,))
    run = {"provenance": {"nodes": provenance}}
    evidence = gather_evidence(world, Control(3), {}, run, NcclEvidence())  # type: ignore[arg-type]
    assert evidence.rdma_nodes == nodes == set(evidence.expected)
    assert evidence.nodes == (0, 1, 2)


@pytest.mark.parametrize(
    ("cuda_ipc", "disabled", "ignored"),
    [
        ("off", "0", "cuda_ipc=off had no effect on NCCL: NCCL_P2P_DISABLE is 0"),
        ("off", "1", None),
        ("auto", "1", None),
    ],
)
def test_a_setting_without_effect_is_said(
    monkeypatch: pytest.MonkeyPatch, cuda_ipc: str, disabled: str, ignored: str | None
) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", disabled)
    monkeypatch.delenv("NCCL_P2P_LEVEL", raising=False)
    run = {"provenance": {"nodes": [{}]}, "cuda_ipc": {"asked": cuda_ipc}}
    world = World(0, 4, ((0, 1, 2, 3),), (0,))
    reader = read((LOG, (0, 1, 2, 3)))
    facts = {"ipc_libraries": ["NCCL"], "nccl_log": LOG}
    evidence = gather_evidence(world, Control(4), facts, run, reader)  # type: ignore[arg-type]
    assert evidence.cuda_ipc == {"effective": "off", "ignored": ignored}


@pytest.mark.parametrize(
    ("node", "facts", "wire"),
    [
        (TWO, {"transport": "tcp"}, ETHERNET),
        (TWO, {}, None),  # MPI may take either
        ({"network.rdma.mlx5_0:1.state": "DOWN"}, {}, ETHERNET),
        ({"network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0}, {}, ETHERNET),  # of an unknown state
        ({}, {}, ETHERNET),
    ],
)
def test_a_library_without_a_log_uses_the_interface_on_the_route(
    node: dict[str, Any], facts: dict[str, Any], wire: Limit | None
) -> None:
    node = node | {"network.used.interface": "eth0", "network.used.speed_mbit_per_s": 25_000.0}
    assert route_interfaces([node, node, {}], facts, {}) == (wire, wire, None)


@pytest.mark.parametrize(
    ("told", "node", "wire"),
    [
        ({"": 12.5}, {}, (12.5, "node 100 Gb/s by limit=", "told")),
        ({"": 12.5}, TWO, (12.5, "node 100 Gb/s by limit=", "told")),  # MPI may take either
        ({"eth0": 1.25}, {}, (1.25, "eth0 10 Gb/s by limit=", "told")),
        ({"eth0": 1.25}, TWO, None),
        ({"eth1": 1.25}, {}, ETHERNET),
    ],
)
def test_the_users_word_comes_before_the_drivers(
    told: dict[str, float], node: dict[str, Any], wire: Limit | None
) -> None:
    used = {"network.used.interface": "eth0", "network.used.speed_mbit_per_s": 25_000.0}
    assert route_interfaces([node | used], {}, told) == (wire,)
    silent = {"network.used.interface": "eth0"} | node
    unknown = None if wire == ETHERNET else wire
    assert route_interfaces([silent], {}, told) == (unknown,)


def test_the_users_word_is_in_the_record_of_the_run() -> None:
    nodes = [{"network.used.interface": "eth0"}, {"network.used.interface": "ens5"}]
    run = {"provenance": {"nodes": nodes}, "told_rates_gb_per_s": {"ens5": 12.5}}
    world = World(0, 2, ((0,), (1,)), (0,))
    evidence = gather_evidence(world, Control(2), {"transport": "tcp"}, run, NcclEvidence())  # type: ignore[arg-type]
    assert evidence.reported.interfaces == (None, (12.5, "ens5 100 Gb/s by limit=", "told"))
