"""The addresses of this machine: of an interface, of the way to another host, and of a host's own name."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from contextlib import closing

import psutil

from commbench.core.errors import ConfigError

LOOPBACK = "127.0.0.1"
NAME = re.compile(r"[^/\s]{1,15}")  # IFNAMSIZ, linux/if.h
ANY_PORT = 9  # connecting a UDP socket sends nothing: the kernel only looks up its route


def check_interface(asked: str) -> str:
    """The key `interface` as it was given; raises ConfigError where it is neither a name nor a network."""
    network = _network(asked)
    if network is None and not NAME.fullmatch(asked):
        raise ConfigError(f"interface={asked!r} is no interface; give a name (eth0) or a network (10.0.0.0/24)")
    return asked


def interface_name(asked: str) -> str:
    """This machine's interface of that name, or the one with an address in that network; raises ConfigError."""
    return _chosen(asked)[0]


def interface_address(asked: str) -> str:
    """That interface's IPv4 address, else an IPv6 one that is not link-local; raises ConfigError."""
    return _chosen(asked)[1]


def _chosen(asked: str) -> tuple[str, str]:
    found = _addresses()
    network = _network(asked)
    if network is not None:
        for name, addresses in sorted(found.items()):
            for address in addresses:
                if ipaddress.ip_address(address.partition("%")[0]) in network:
                    return name, address
        seen = ", ".join(f"{name} {addresses[0]}" for name, addresses in sorted(found.items()) if addresses)
        raise ConfigError(f"interface={asked}: no address here is in that network; there are: {seen}")
    if asked not in found:
        raise ConfigError(f"interface={asked} does not exist here; there are: {', '.join(sorted(found))}")
    if not found[asked]:
        raise ConfigError(f"interface={asked} has no IP address; choose another one or give it one")
    return asked, found[asked][0]


def _addresses() -> dict[str, list[str]]:
    """By interface, IPv4 first; link-local ones reach nobody without the name of the interface."""
    return {
        name: [
            one.address
            for family in (socket.AF_INET, socket.AF_INET6)
            for one in addresses
            if one.family == family and not one.address.lower().startswith("fe80")
        ]
        for name, addresses in psutil.net_if_addrs().items()
    }


def _network(asked: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Of 10.0.0.0/24; None for a name."""
    if "/" not in asked:
        return None
    try:
        return ipaddress.ip_network(asked, strict=False)
    except ValueError as error:
        raise ConfigError(f"interface={asked}: {error}; write a network like 10.0.0.0/24") from error


def holder(address: str) -> str | None:
    """The interface that has this address."""
    return next((name for name, addresses in _addresses().items() if address in addresses), None)


def meeting_address(interface: str | None, *peers: str) -> str:
    """Where others shall reach this host: on that interface, else on the way to the peers; loopback without any.

    Raises ConfigError where there is none.
    """
    if interface is not None:
        return interface_address(interface)
    return outer_address(*peers) if peers else LOOPBACK


def outer_address(*peers: str) -> str:
    """Where other hosts reach this one: on the way to one of `peers`, else by its name, else an interface that is up.

    Raises ConfigError where there is none but loopback.
    """
    for address in _candidates(peers):
        if not is_loopback(address):
            return address
    raise ConfigError("this host has no address but loopback, and ranks on other nodes; choose one with interface=NAME")


def own_address(host: str) -> str | None:
    """The address of a host name, IPv4 first, if it belongs to this machine; None for another machine's or none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            address = str(socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)[0][4][0])
            with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
                probe.bind((address, 0))
        except OSError:
            continue
        return address
    return None


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _candidates(peers: tuple[str, ...]) -> Iterator[str]:
    for find, host in (*((_route_source, peer) for peer in peers), (socket.gethostbyname, socket.gethostname())):
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
