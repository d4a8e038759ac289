"""Addresses of this machine's real interfaces."""

from __future__ import annotations

import ipaddress
import socket

import psutil
import pytest

from commbench.backends.tcp.address import INTERFACE, listening_address
from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.hardware.network import interface_address

ONE_NODE = World(0, 2, ((0, 1),), (0,))
TWO_NODES = World(0, 2, ((0,), (1,)), (0,))


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (INTERFACE, "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def outer_addresses() -> set[str]:
    found = [
        one.address for addresses in psutil.net_if_addrs().values() for one in addresses if one.family == socket.AF_INET
    ]
    return {one for one in found if not ipaddress.ip_address(one).is_loopback}


def test_one_node_talks_over_loopback() -> None:
    assert listening_address(ONE_NODE, None) == "127.0.0.1"


def test_a_chosen_interface_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERFACE, "lo")
    assert listening_address(TWO_NODES, None) == "127.0.0.1"


def test_an_unknown_interface_names_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"interface=nosuch0 does not exist on this host; it has: .*lo"):
        interface_address("nosuch0")


@pytest.mark.skipif(not outer_addresses(), reason="no address but loopback")
@pytest.mark.parametrize("meeting", ["127.0.0.1", "localhost", "no-such-host.invalid", *sorted(outer_addresses())[:1]])
def test_several_nodes_never_talk_over_loopback(monkeypatch: pytest.MonkeyPatch, meeting: str) -> None:
    """Also on the meeting point's own host, whose name may be a loopback address there."""
    monkeypatch.setenv("MASTER_ADDR", meeting)
    assert listening_address(TWO_NODES, None) in outer_addresses()


def test_the_route_to_the_stores_host_is_asked_where_no_address_was_exported() -> None:
    class Store:
        host = "127.0.0.1"

    class Prefixed:
        underlying_store = Store()

    own = outer_addresses()
    if own:
        assert listening_address(TWO_NODES, Prefixed()) in own
    else:
        with pytest.raises(ConfigError, match="interface=NAME"):
            listening_address(TWO_NODES, Prefixed())
