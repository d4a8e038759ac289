"""The network between nodes that a kind of machine has, by its PCI devices, RDMA ports and DMI, and
whether a library took it: a library that cannot open it falls back to TCP without a word.

Sources: PCI ids of EFA (1d0f:efa*), gVNIC (1ae0:0042) and Slingshot (17db:0501); Google's
documentation of GPUDirect-TCPX (4 gVNICs for GPUs), TCPXO (8) and of gIB (RDMA); the names of
networks in the logs of NCCL and of its plugins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from commbench.results.network_cards import active_ports_of

GOOGLE = "Google Compute Engine"  # DMI's product name
GVNIC = "network.pci.1ae0:0042"
# TCP in place of the network that is expected, as transports are named: NCCL's sockets, its OFI
# plugin on another provider than that of the network, MPI on its own TCP, UCX on TCP
ON_TCP = re.compile(r"NET/Socket|NET/.*Libfabric.* \((?:tcp|sockets|udp)|ob1/tcp|ucx/(?:.*\+)?tcp")
RDMA_CURE = (
    "install libibverbs and its providers, give the container /dev/infiniband, look at"
    " NCCL_IB_DISABLE and NCCL_IB_HCA; MPI: UCX_NET_DEVICES, OMPI_MCA_pml=ucx"
)


@dataclass(frozen=True)
class ExpectedNetwork:
    """`machine` has it, NCCL calls it `network`, and `cure` is what to look at where it is not
    taken."""

    machine: str
    network: str
    cure: str

    def __str__(self) -> str:
        return f"this machine has {self.machine} (NCCL: NET/{self.network}): {self.cure}"


EFA = ExpectedNetwork(
    "EFA",
    "AWS Libfabric",
    "put libfabric and aws-ofi-nccl (libnccl-net.so) on LD_LIBRARY_PATH, give the container"
    " /dev/infiniband; NCCL_NET='AWS Libfabric' makes a missing plugin an error",
)
SLINGSHOT = ExpectedNetwork(
    "Slingshot",
    "AWS Libfabric",
    "put libfabric with its provider cxi and aws-ofi-nccl on LD_LIBRARY_PATH;"
    " NCCL_NET='AWS Libfabric' makes a missing plugin an error",
)
GIB = ExpectedNetwork(
    "RDMA of Google Cloud",
    "gIB",
    "put /usr/local/gib/lib64 on LD_LIBRARY_PATH and source"
    " /usr/local/gib/scripts/set_nccl_env.sh; NCCL_NET=gIB makes a missing plugin an error",
)
TCPXO = ExpectedNetwork(
    "GPUDirect-TCPXO",
    "FasTrak",
    "run the TCPXO daemon on each node, put the plugin on LD_LIBRARY_PATH and set its"
    " NCCL_FASTRAK_* variables; NCCL_NET=FasTrak makes a missing plugin an error",
)
TCPX = ExpectedNetwork(
    "GPUDirect-TCPX",
    "GPUDirectTCPX",
    "run the receive-datapath-manager on each node, put the plugin on LD_LIBRARY_PATH and set its"
    " NCCL_GPUDIRECTTCPX_* variables",
)
INFINIBAND = ExpectedNetwork("InfiniBand", "IB", RDMA_CURE)
ROCE = ExpectedNetwork("RoCE", "IB", f"{RDMA_CURE}, NCCL_IB_GID_INDEX")


def expected_network(facts: Mapping[str, object]) -> ExpectedNetwork | None:
    """That of a node with these facts; None if it has plain Ethernet only, or nothing is known."""
    layers = {port.get("link_layer") for port in active_ports_of(facts).values()}
    if any(key.startswith("network.pci.1d0f:efa") for key in facts):
        return EFA
    if "network.pci.17db:0501" in facts:
        return SLINGSHOT
    if facts.get("host.machine_product") == GOOGLE:
        if layers:
            return GIB
        adapters = facts.get(GVNIC)
        count = adapters if isinstance(adapters, int) and "gpu.count" in facts else 0
        return TCPXO if count > 8 else TCPX if count > 4 else None  # one of them is for the host
    if "InfiniBand" in layers:
        return INFINIBAND
    return ROCE if layers else None
