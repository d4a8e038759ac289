"""The kernel's counters of network ports: a made-up machine, and this one."""

from __future__ import annotations

import socket
from pathlib import Path

from commbench.hardware import nic_counters


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_interfaces_that_are_up_and_infiniband_ports_are_counted_in_bytes(tmp_path: Path) -> None:
    machine = {
        "net/eth0/operstate": "up", "net/eth0/statistics/rx_bytes": "7\n", "net/eth0/statistics/tx_bytes": "9\n",
        "net/eth1/operstate": "down", "net/eth1/statistics/rx_bytes": "1", "net/eth1/statistics/tx_bytes": "1",
        "net/lo/operstate": "unknown", "net/lo/statistics/rx_bytes": "5", "net/bonding_masters": "bond0",
        "infiniband/mlx5_0/ports/1/counters/port_rcv_data": "100",
        "infiniband/mlx5_0/ports/1/counters/port_xmit_data": "N/A (no PMA)",
    }  # fmt: skip
    assert nic_counters.readings(write(tmp_path, machine)) == {
        "nic.eth0.rx_bytes": 7.0, "nic.eth0.tx_bytes": 9.0, "nic.mlx5_0:1.rx_bytes": 400.0
    }  # fmt: skip


def test_a_machine_that_tells_nothing_has_no_readings(tmp_path: Path) -> None:
    assert nic_counters.readings(tmp_path) == {}


def test_this_machine_counts_what_it_has() -> None:
    names = {name for _, name in socket.if_nameindex()} - {"lo"}
    assert {name.split(".")[1].partition(":")[0] for name in nic_counters.readings() if ":" not in name} <= names
