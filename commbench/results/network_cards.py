"""The network cards of a node, by its facts, and those that can be rails, each tried by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commbench.core.units import natural_key

# bridges, tunnels and other interfaces that lead to no cable of their own
SOFTWARE_INTERFACES = ("lo", "docker", "br-", "virbr", "cni", "flannel", "tun", "wg", "vxlan")

Devices = dict[str, dict[str, Any]]  # the facts of each, by its name


def facts_by_device(facts: Mapping[str, Any], prefix: str) -> Devices:
    """The facts below a prefix, as name -> {fact: value}; a name may hold dots (eth0.100)."""
    devices: Devices = {}
    for key, value in facts.items():
        if key.startswith(prefix):
            name, _, fact = key.removeprefix(prefix).rpartition(".")
            devices.setdefault(name, {})[fact] = value
    return devices


def interfaces_of(facts: Mapping[str, Any]) -> Devices:
    return facts_by_device(facts, "network.interface.")


def ports_of(facts: Mapping[str, Any]) -> Devices:
    """The ports of InfiniBand and RoCE devices (mlx5_0:1)."""
    devices = facts_by_device(facts, "network.rdma.")
    return {name: own for name, own in devices.items() if ":" in name}


def active_ports_of(facts: Mapping[str, Any]) -> Devices:
    """Those whose state is known to be ACTIVE."""
    return {name: own for name, own in ports_of(facts).items() if own.get("state") == "ACTIVE"}


def usable_ports_of(facts: Mapping[str, Any]) -> Devices:
    """Those that are not known to be down."""
    ports = ports_of(facts)
    return {name: own for name, own in ports.items() if own.get("state", "ACTIVE") == "ACTIVE"}


def interface_rails(facts: Mapping[str, Any]) -> list[str]:
    """The interfaces of a node that may be rails: up, with an address, as fast as the fastest that
    reports a rate, and not made by software of the host. Empty for a node without any."""
    rates = {
        name: own.get("speed_mbit_per_s")
        for name, own in interfaces_of(facts).items()
        if own.get("state") == "up"
        and "network" in own
        and not name.startswith(SOFTWARE_INTERFACES)
    }
    known = [rate for rate in rates.values() if rate is not None]
    fastest = [name for name, rate in rates.items() if not known or rate == max(known)]
    return sorted(fastest, key=natural_key)


def port_rails(facts: Mapping[str, Any]) -> list[str]:
    """The usable InfiniBand and RoCE ports (mlx5_0:1) of a node that are as fast as the fastest."""
    ports = usable_ports_of(facts)
    rates = {
        name: own["rate_gbit_per_s"] for name, own in ports.items() if "rate_gbit_per_s" in own
    }
    fastest = [name for name, rate in rates.items() if rate == max(rates.values())]
    return sorted(fastest, key=natural_key)
