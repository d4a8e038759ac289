"""Under which address this host is reached by the other ranks."""

from __future__ import annotations

import os
import socket
from typing import Any

from commbench.core.case import World
from commbench.hardware.network import meeting_address

INTERFACE = "COMMBENCH_TCP_INTERFACE"  # exported from the key `interface`


def listening_address(world: World, store: Any) -> str:
    """Of the chosen interface; else loopback on one node; else that of the route to the meeting point.

    Raises ConfigError where there is none.
    """
    peers = [os.environ.get("MASTER_ADDR") or _host_of(store)] if len(world.nodes) > 1 else []
    return meeting_address(os.environ.get(INTERFACE) or None, *peers)


def _host_of(store: Any) -> str:
    """torch wraps a TCPStore into prefixes; only the innermost one knows its host."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", socket.gethostname()))
