from __future__ import annotations

import re
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from commbench.core.errors import ConfigError
from commbench.hardware import network


def test_interfaces(plant):
    net = "sys/class/net"
    files = {
        f"{net}/eth0/operstate": "up\n",
        f"{net}/eth0/mtu": "9001\n",
        f"{net}/eth0/speed": "100000\n",
        f"{net}/eth0/address": "02:00:00:00:00:01\n",
        f"{net}/eth0/device/numa_node": "1\n",
        f"{net}/eth0.100/operstate": "down\n",
        f"{net}/eth0.100/speed": "-1\n",
        f"{net}/ve+th/mtu": "1500\n",
        f"{net}/bonding_masters": "bond0\n",
    }
    facts = network.collect(
        plant(files, {f"{net}/eth0/device/driver": "../../../bus/pci/drivers/ena"})
    )
    assert {
        key: value for key, value in facts.items() if not key.endswith((".ipv4", ".network"))
    } == {
        "network.interface.eth0.state": "up",
        "network.interface.eth0.mtu_bytes": 9001,
        "network.interface.eth0.speed_mbit_per_s": 100000,
        "network.interface.eth0.driver": "ena",
        "network.interface.eth0.numa_node": 1,
        "network.interface.eth0.100.state": "down",
        "network.interface.ve_th.mtu_bytes": 1500,
    }


def test_sysctls(plant):
    facts = network.collect(
        plant(
            {
                "proc/sys/net/ipv4/tcp_slow_start_after_idle": "1\n",
                "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
                "proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
                "proc/sys/net/core/rmem_max": "212992\n",
            }
        )
    )
    assert facts == {
        "network.tcp_slow_start_after_idle": 1,
        "network.tcp_rmem_bytes": "4096 131072 6291456",
        "network.tcp_congestion_control": "cubic",
        "network.rmem_max_bytes": 212992,
    }


def test_rdma(plant):
    device = "sys/class/infiniband/mlx5_0"
    facts = network.collect(
        plant(
            {
                f"{device}/fw_ver": "28.39.2048\n",
                f"{device}/device/numa_node": "-1\n",
                f"{device}/ports/1/state": "4: ACTIVE\n",
                f"{device}/ports/1/link_layer": "InfiniBand\n",
                f"{device}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            }
        )
    )
    assert facts == {
        "network.rdma.mlx5_0.firmware": "28.39.2048",
        "network.rdma.mlx5_0:1.state": "ACTIVE",
        "network.rdma.mlx5_0:1.link_layer": "InfiniBand",
        "network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0,
    }


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200 Gb/sec (4X HDR)", 200.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("fast", None),
        ("10 MB/sec", None),
    ],
)
def test_rate(plant, text, rate):
    facts = network.collect(plant({"sys/class/infiniband/mlx5_0/ports/1/rate": text}))
    assert facts.get("network.rdma.mlx5_0:1.rate_gbit_per_s") == rate


@pytest.mark.parametrize("speed", [-1, 0, 65535, 2**32 - 1, None])
def test_unknown_speeds(speed):
    assert network.known_speed(speed) is None


def test_this_machine_has_a_loopback_and_tells_no_hardware_address():
    facts = network.collect()
    assert "network.error" not in facts
    assert facts["network.interface.lo.mtu_bytes"] > 0
    assert facts["network.interface.lo.ipv4"] == "127.0.0.1"
    assert not any("mac" in key or "address" in key for key in facts)


def test_interfaces_that_are_up_and_infiniband_ports_are_counted_in_bytes(plant) -> None:
    net = "sys/class/net"
    ports = "sys/class/infiniband/mlx5_0/ports/1/counters"
    machine = {
        f"{net}/eth0/operstate": "up",
        f"{net}/eth0/statistics/rx_bytes": "7\n",
        f"{net}/eth0/statistics/tx_bytes": "9\n",
        f"{net}/eth1/operstate": "down",
        f"{net}/eth1/statistics/rx_bytes": "1",
        f"{net}/eth1/statistics/tx_bytes": "1",
        f"{net}/lo/operstate": "unknown",
        f"{net}/lo/statistics/rx_bytes": "5",
        f"{net}/bonding_masters": "bond0",
        f"{ports}/port_rcv_data": "100",
        f"{ports}/port_xmit_data": "N/A (no PMA)",
    }
    assert network.byte_counters(plant(machine)) == {
        "nic.eth0.rx_bytes": 7.0, "nic.eth0.tx_bytes": 9.0, "nic.mlx5_0:1.rx_bytes": 400.0
    }  # fmt: skip


def test_a_machine_that_tells_nothing_has_no_readings(tmp_path: Path) -> None:
    assert network.byte_counters(tmp_path) == {}


def test_this_machine_counts_what_it_has() -> None:
    names = {name for _, name in socket.if_nameindex()} - {"lo"}
    assert {
        name.split(".")[1].partition(":")[0] for name in network.byte_counters() if ":" not in name
    } <= names


def test_line_rates_are_those_of_interfaces_and_ports_but_not_of_a_bonded_device():
    """A bonded device (RoCE) may report the rate of one of its ports."""
    facts = {
        "network.interface.eth0.speed_mbit_per_s": 25_000,
        "network.interface.eth0.100.speed_mbit_per_s": 10_000,
        "network.interface.eth1.mtu_bytes": 1500,
        "network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0,
        "network.rdma.mlx5_1:2.rate_gbit_per_s": None,
        "network.rdma.mlx5_bond_0:1.rate_gbit_per_s": 100.0,
        "network.used.speed_mbit_per_s": 25_000,
    }
    assert network.line_rates(facts) == {
        "eth0": 25_000,
        "eth0.100": 10_000,
        "mlx5_0:1": 400_000.0,
    }


@pytest.mark.parametrize("name", ["a" * 64, "a..b", "\udcff"], ids=ascii)
def test_a_host_name_that_dns_can_not_take_is_no_address(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert network.own_address(name) is None
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    try:
        assert not network.is_loopback(network.outer_address(name))
    except ConfigError as error:
        assert "only loopback addresses" in str(error)


def test_interfaces_of_unknown_state_are_named_in_the_order_of_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def masked() -> None:
        raise FileNotFoundError("/proc/net/dev")

    address = SimpleNamespace(family=socket.AF_INET, address="10.0.0.1")
    monkeypatch.setattr(psutil, "net_if_stats", masked)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth10": [address], "eth2": [address]})
    assert "eth2 10.0.0.1, eth10 10.0.0.1" in network.network_advice("no answer")


def test_a_sandbox_that_lists_no_interfaces_leaves_the_route_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(psutil, "net_if_addrs", refuse)
    assert network.outgoing_facts("eth0", ()) == {}
    assert "PermissionError" in network.collect()["network.error"]


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        (["100Gb/s"], {"": 12.5}),
        (["eth0:10Gb/s", "eth1:25Gb/s"], {"eth0": 1.25, "eth1": 3.125}),
        (["mlx5_0:1:400Gb/s"], {"mlx5_0:1": 50.0}),
        ([], {}),
    ],
)
def test_a_line_rate_is_told_for_a_node_or_for_its_interfaces(words, rates) -> None:
    assert network.told_rates(words) == rates


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["100"], "limit=100: '100' is not a rate"),
        (["eth0:fast"], "limit=eth0:fast: 'fast' is not a rate"),
        (["eth0:1Gb/s", "eth0:2Gb/s"], "limit=eth0:2Gb/s: is given twice"),
        (["1Gb/s", "2Gb/s"], "given twice"),
        (["eth 0:1Gb/s"], "eth 0 is not the name of an interface"),
        (["1Gb/s", "eth0:1Gb/s"], "limit takes one rate of a node, or those of its interfaces"),
    ],
)
def test_what_tells_no_line_rate_is_refused(words, why) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        network.told_rates(words)


def test_an_interface_that_no_host_has_is_named_with_those_that_there_are() -> None:
    node = {"network.interface.eth0.state": "up", "network.rdma.mlx5_0:1.state": "ACTIVE"}
    other = {"network.interface.ens5.speed_mbit_per_s": None, "network.tcp_rmem_bytes": "4096"}
    assert network.told_problem({"eth0": 1.0, "ens5": 1.0, "mlx5_0:1": 1.0}, [node, other]) is None
    assert network.told_problem({"": 1.0}, [node]) is None
    problem = network.told_problem({"eth7": 1.0}, [node, other])
    assert problem == "limit=eth7:RATE: no host has that interface; they have: eth0, mlx5_0:1"
    assert network.told_problem({"eth7": 1.0}, [node, {}]) is None  # a sandbox that hides them
