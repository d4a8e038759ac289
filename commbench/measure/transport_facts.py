"""What the ranks know about data paths, gathered on rank 0: from preflight, from the opened library
and from NCCL's log."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from commbench.core.case import World
from commbench.core.protocols import Control
from commbench.core.variables import Ipc
from commbench.hardware import nvml
from commbench.hardware.cuda import CUDA_IPC_VALUES, NCCL, cuda_ipc_without_effect
from commbench.hardware.expected_network import expected_network
from commbench.hardware.link_limits import Limit
from commbench.hardware.network import line_rates
from commbench.hardware.topology import RankGpu
from commbench.hardware.ucx_log import BETWEEN, WITHIN
from commbench.results.network_cards import active_ports_of

from .nccl_evidence import NcclEvidence
from .time_limits import MEETING_S
from .transports import IPC, Reported, TransportEvidence, has_twice, wire_of

LIBRARIES = "ipc_libraries"  # a communicator's fact: some of commbench.hardware.cuda
# fields of nvml.Gpu that the rank itself reads: no other rank need see its GPU, and PCIe links that
# were in a low-power state during preflight are active once the library has opened the GPU
OWN_READINGS = ("pcie_generation", "pcie_width", "nvlink_links", "c2c_gb_per_s")
TCP = "tcp"


def gather_evidence(
    world: World,
    control: Control,
    facts: Mapping[str, Any],
    run: Mapping[str, Any],
    own: NcclEvidence,
) -> TransportEvidence:
    """What the opened library and preflight know about data paths, on rank 0; all ranks call it.
    `own` is what this rank's log says."""
    gpu_run = run.get("gpus") or facts.get("gpu") or own.logged
    # PCIe links that were in a low-power state during preflight are awake now (wake_links)
    readings = [
        [gpu.pci_bus_id, {name: getattr(gpu, name) for name in OWN_READINGS}]
        for gpu in (nvml.gpus() if gpu_run else ())
    ]
    gathered = control.gather([own.record(), readings], MEETING_S, "the library's transports")
    if world.rank != 0:
        return TransportEvidence()
    nodes = run["provenance"]["nodes"]
    gpus = []
    for rank, gpu in enumerate(run.get("gpus", [])):
        reading = dict(gathered[rank][1]).get(gpu.get("gpu.own.pci_bus_id"))
        node = world.node_of(rank)
        gpus.append(RankGpu.from_facts(node, gpu, nodes[node], reading))
    told = run.get("told_rates_gb_per_s", {})
    expected = ((number, expected_network(node)) for number, node in enumerate(nodes))
    return TransportEvidence(
        nodes=tuple(map(world.node_of, range(world.size))),
        gpus=tuple(gpus),
        topologies={
            node: record["links"]
            for node, record in enumerate(run.get("wiring", []))
            if record is not None
        },
        nccl=NcclEvidence().extended((record for record, _ in gathered), own),
        reported=_reported(nodes, facts, told),
        rates=tuple(map(line_rates, nodes)),
        told=told,
        rdma_nodes=frozenset(number for number, node in enumerate(nodes) if active_ports_of(node)),
        expected={number: network for number, network in expected if network is not None},
        ignored=_ignored_ipc(run.get("cuda_ipc", {}).get("asked", "auto"), facts, gpus),
    )


def _reported(
    nodes: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], told: Mapping[str, float]
) -> Reported:
    transport = facts.get("transport")
    by_mpi = facts.get("transports", {})
    between = transport
    if transport == TCP:  # it takes the interface on the route to the others: tcp:eth0
        names = {str(node.get("network.used.interface", "")) for node in nodes} - {""}
        between = f"{TCP}:{'+'.join(sorted(names))}" if names else TCP
    return Reported(
        within=transport or by_mpi.get(WITHIN),
        between=by_mpi.get(BETWEEN) or between,
        ipc=facts[IPC] if facts.get(IPC) in CUDA_IPC_VALUES else None,
        interfaces=route_interfaces(nodes, facts, told),
    )


def route_interfaces(
    nodes: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], told: Mapping[str, float]
) -> tuple[Limit | None, ...]:
    """The interface of each node on the route to the others; None if its rate is unknown.

    A backend that reports its transport uses it. Another one may use InfiniBand ports if there are
    any.
    """
    interfaces = list[Limit | None]()
    for node in nodes:
        is_used = facts.get("transport") is not None or not active_ports_of(node)
        name = node.get("network.used.interface") if is_used else None
        rate = node.get("network.used.speed_mbit_per_s")
        rates = {} if name is None or rate is None else {name: rate}
        interfaces.append(wire_of([] if name is None else [name], rates, told))
    return tuple(interfaces)


def _ignored_ipc(setting: Ipc, facts: Mapping[str, Any], gpus: Sequence[RankGpu]) -> str | None:
    """Why the setting cuda_ipc had no effect: each library that may carry the data ignored it."""
    reasons = [
        cuda_ipc_without_effect(setting, library, os.environ)
        or _same_gpu_without_effect(setting, library, gpus)
        for library in facts.get(LIBRARIES, ())
    ]
    return "; ".join(map(str, reasons)) if reasons and all(reasons) else None


def _same_gpu_without_effect(setting: str, library: str, gpus: Sequence[RankGpu]) -> str | None:
    """Seen with NCCL 2.30.7: it logs P2P/CUMEM between two ranks on one GPU."""
    if setting != "off" or library != NCCL or not has_twice(gpus):
        return None
    return (
        "cuda_ipc=off has no effect between ranks on one GPU: NCCL maps their memory all the same"
    )
