"""The network cards of a node, by its facts: those that can be rails, each tried by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from commbench.core.units import natural_key

# bridges, tunnels and other interfaces that lead to no cable of their own
SOFTWARE_INTERFACES = ("lo", "docker", "br-", "virbr", "cni", "flannel", "tun", "wg", "vxlan")


def interface_rails(facts: Mapping[str, object]) -> list[str]:
    """The interfaces of a node that may be rails: up, with an address, as fast as the fastest that
    reports a rate, and not made by software of the host. Empty for a node without any."""
    names = {
        match[1]
        for key, state in facts.items()
        if (match := re.fullmatch(r"network\.interface\.(.+)\.state", key)) and state == "up"
    }
    rates = {
        name: facts.get(f"network.interface.{name}.speed_mbit_per_s")
        for name in names
        if not name.startswith(SOFTWARE_INTERFACES)
        and facts.get(f"network.interface.{name}.network") is not None
    }
    known = [rate for rate in rates.values() if isinstance(rate, int)]
    fastest = [name for name, rate in rates.items() if not known or rate == max(known)]
    return sorted(fastest, key=natural_key)


def port_rails(facts: Mapping[str, object]) -> list[str]:
    """The active InfiniBand and RoCE ports (mlx5_0:1) of a node that are as fast as the fastest."""
    rates = {}
    for key, rate in facts.items():
        match = re.fullmatch(r"network\.rdma\.(.+:\d+)\.rate_gbit_per_s", key)
        if match is None or not isinstance(rate, int | float):
            continue
        if facts.get(f"network.rdma.{match[1]}.state", "ACTIVE") == "ACTIVE":
            rates[match[1]] = rate
    fastest = [name for name, rate in rates.items() if rate == max(rates.values())]
    return sorted(fastest, key=natural_key)
