"""The ways out of this machine: interfaces, RDMA devices, and the kernel's TCP settings."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from commbench.core.errors import ConfigError

from .address import holder, interface_address, interface_name, outer_address
from .sources import ROOT, Facts, children, gather, key_part, read_int, read_line, read_link

UNKNOWN_SPEEDS = (0, -1, 2**32 - 1, 65535)  # how drivers write "I don't know", in 16 and 32 bits
# Under /proc/sys/net; numbers are single, texts are three numbers (minimum, default, maximum) or a name.
SYSCTL_NUMBERS = {
    "tcp_slow_start_after_idle": "ipv4/tcp_slow_start_after_idle",
    "rmem_max_bytes": "core/rmem_max",
    "wmem_max_bytes": "core/wmem_max",
}
SYSCTL_TEXTS = {
    "tcp_congestion_control": "ipv4/tcp_congestion_control",
    "tcp_rmem_bytes": "ipv4/tcp_rmem",
    "tcp_wmem_bytes": "ipv4/tcp_wmem",
}


def collect(root: Path = ROOT) -> Facts:
    """The facts as `network.*`; hardware addresses are left out on purpose."""
    return gather("network", SOURCES, root)


def parse_rate(text: str) -> float | None:
    """Gb/s of an RDMA port's rate, 200 of `200 Gb/sec (4X HDR)`."""
    match = re.match(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?) Gb/sec", text)
    return float(match[1]) if match else None


def known_speed(speed: int | None) -> int | None:
    """Mbit/s of an interface, None for the numbers that mean unknown."""
    return None if speed in UNKNOWN_SPEEDS else speed


def ipv4_addresses() -> Mapping[str, str]:
    """interface -> its IPv4 addresses with a comma between; interfaces without one are left out."""
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        own = sorted(address.address for address in addresses if address.family == socket.AF_INET)
        if own:
            found[name] = ",".join(own)
    return found


def interface_facts(root: Path) -> Facts:
    """State, MTU, line rate, driver, NUMA node and addresses of every interface."""
    facts: Facts = {}
    addresses = ipv4_addresses()
    for folder in children(root / "sys/class/net"):
        if folder.is_dir():  # bonding_masters is a file
            facts |= _interface(folder, addresses.get(folder.name))
    return facts


def _interface(folder: Path, ipv4: str | None) -> Facts:
    key = f"network.interface.{key_part(folder.name)}"
    driver = read_link(folder / "device/driver")
    return {
        f"{key}.state": read_line(folder / "operstate"),
        f"{key}.mtu_bytes": read_int(folder / "mtu"),
        f"{key}.speed_mbit_per_s": known_speed(read_int(folder / "speed")),
        f"{key}.driver": Path(driver).name if driver else None,
        f"{key}.numa_node": _numa_node(folder),
        f"{key}.ipv4": ipv4,
    }


def way_out(asked: str | None, peers: Sequence[str]) -> Facts:
    """The interface to other nodes as `network.used.*`: the one asked for, else the one on the way to the peers.

    Without a choice a library may still take another one. Empty where there is none.
    """
    try:
        address = interface_address(asked) if asked is not None else outer_address(*peers)
        name = interface_name(asked) if asked is not None else holder(address)
    except ConfigError:
        return {}
    speed = known_speed(read_int(ROOT / "sys/class/net" / name / "speed")) if name else None
    facts = {"interface": name, "address": address, "speed_mbit_per_s": speed}
    return {f"network.used.{key}": value for key, value in facts.items() if value is not None}


def sysctl_facts(root: Path) -> Facts:
    """The settings that shape a TCP flow: window limits, congestion control, slow start after a pause."""
    folder = root / "proc/sys/net"
    numbers = {f"network.{name}": read_int(folder / path) for name, path in SYSCTL_NUMBERS.items()}
    texts = {f"network.{name}": read_line(folder / path) for name, path in SYSCTL_TEXTS.items()}
    return numbers | texts


def rdma_facts(root: Path) -> Facts:
    """Every port of every InfiniBand or RoCE device."""
    facts: Facts = {}
    for device in children(root / "sys/class/infiniband"):
        key = f"network.rdma.{key_part(device.name)}"
        facts[f"{key}.firmware"] = read_line(device / "fw_ver")
        facts[f"{key}.numa_node"] = _numa_node(device)
        for port in children(device / "ports", r"\d+"):
            facts |= _port(f"{key}:{port.name}", port)
    return facts


def _port(key: str, folder: Path) -> Facts:
    state = read_line(folder / "state") or ""
    return {
        f"{key}.state": state.partition(": ")[2] or state or None,  # "4: ACTIVE"
        f"{key}.link_layer": read_line(folder / "link_layer"),
        f"{key}.rate_gbit_per_s": parse_rate(read_line(folder / "rate") or ""),
    }


def _numa_node(folder: Path) -> int | None:
    node = read_int(folder / "device/numa_node")
    return None if node is None or node < 0 else node


SOURCES = (interface_facts, sysctl_facts, rdma_facts)
