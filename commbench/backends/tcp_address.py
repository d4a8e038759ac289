"""Under which address this host is reached by the other ranks."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psutil

from commbench.contracts import World
from commbench.errors import ConfigError

INTERFACE = "COMMBENCH_TCP_INTERFACE"  # exported from the key `interface`
LOOPBACK = "127.0.0.1"
ANY_PORT = 9  # connecting a UDP socket sends nothing: the kernel only looks up its route


def listening_address(world: World, store: Any) -> str:
    """Of the chosen interface; else loopback on one node; else that of the route to the meeting point.

    Raises ConfigError where there is none.
    """
    interface = os.environ.get(INTERFACE)
    if interface:
        return interface_address(interface)
    if len(world.nodes) == 1:
        return LOOPBACK
    for address in _candidates(store):
        if not ipaddress.ip_address(address).is_loopback:
            return address
    raise ConfigError("this host has no address but loopback, and ranks on other nodes; choose one with interface=NAME")


def interface_address(name: str) -> str:
    """The interface's IPv4 address, else an IPv6 one that is not link-local."""
    found = psutil.net_if_addrs()
    if name not in found:
        raise ConfigError(f"interface={name} does not exist here; there are: {', '.join(sorted(found))}")
    for family in (socket.AF_INET, socket.AF_INET6):
        for one in found[name]:
            if one.family == family and not one.address.lower().startswith("fe80"):
                return one.address
    raise ConfigError(f"interface={name} has no IP address; choose another one or give it one")


def _candidates(store: Any) -> Iterator[str]:
    meeting = os.environ.get("MASTER_ADDR") or _host_of(store)
    for find, host in ((_route_source, str(meeting)), (socket.gethostbyname, socket.gethostname())):
        try:
            yield find(host)
        except OSError:
            continue
    # on the meeting point's own host both may be loopback: /etc/hosts often says so of one's own name
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    for name, addresses in psutil.net_if_addrs().items():
        yield from (one.address for one in addresses if name in up and one.family == socket.AF_INET)


def _route_source(host: str) -> str:
    family, _, _, _, target = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _host_of(store: Any) -> str:
    """torch wraps a TCPStore into prefixes; only the innermost one knows its host."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", socket.gethostname()))
