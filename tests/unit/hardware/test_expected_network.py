"""Which network a kind of machine has, by planted PCI devices, ports and DMI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loops import for_each

from commbench.hardware.expected_network import (
    EFA,
    GIB,
    INFINIBAND,
    ROCE,
    SLINGSHOT,
    TCPX,
    TCPXO,
    ExpectedNetwork,
    expected_network,
)
from commbench.hardware.network import pci_facts

GOOGLE = {"host.machine_product": "Google Compute Engine", "gpu.count": 8}
MACHINES: list[tuple[Mapping[str, Any], ExpectedNetwork | None]] = [
    ({}, None),
    ({"network.pci.1d0f:efa1": 4}, EFA),
    ({"network.pci.17db:0501": 4}, SLINGSHOT),
    ({**GOOGLE, "network.pci.1ae0:0042": 1}, None),
    ({**GOOGLE, "network.pci.1ae0:0042": 5}, TCPX),  # a3-highgpu-8g
    ({**GOOGLE, "network.pci.1ae0:0042": 9}, TCPXO),  # a3-megagpu-8g
    ({"host.machine_product": GOOGLE["host.machine_product"], "network.pci.1ae0:0042": 9}, None),
]


def port(layer: str, state: str = "ACTIVE") -> dict[str, str]:
    return {"network.rdma.mlx5_0:1.state": state, "network.rdma.mlx5_0:1.link_layer": layer}


@for_each(
    ("facts", "expected"),
    [
        *MACHINES,
        (port("InfiniBand"), INFINIBAND),
        (port("InfiniBand", "DOWN"), None),
        ({"network.rdma.mlx5_0:1.link_layer": "InfiniBand"}, None),  # of an unknown state
        (port("Ethernet"), ROCE),
        ({**GOOGLE, **port("Ethernet"), "network.pci.1ae0:0042": 2}, GIB),  # a3-ultragpu-8g
        # EFA has RDMA ports, too
        ({"network.pci.1d0f:efa2": 16, **port("Unspecified")}, EFA),
    ],
)
def test_a_machine_has_a_network(
    facts: Mapping[str, Any], expected: ExpectedNetwork | None
) -> None:
    assert expected_network(facts) == expected
    assert expected is None or f"NET/{expected.network}" in str(expected)


def test_adapters_of_clouds_are_counted_by_their_pci_ids(tmp_path: Path) -> None:
    devices = {"0000:00:05.0": ("0x1d0f", "0xec20"), "0000:00:04.0": ("0x8086", "0x1237")}
    devices |= {f"0000:0{number}:00.0": ("0x1d0f", "0xefa1") for number in range(1, 5)}
    for name, (vendor, device) in devices.items():
        folder = tmp_path / "sys" / "bus" / "pci" / "devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    assert pci_facts(tmp_path) == {"network.pci.1d0f:efa1": 4}
    assert pci_facts(tmp_path / "nothing") == {}
