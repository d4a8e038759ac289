"""How the ranks of a world find each other: a store at an exported address, or at one that is sent over MPI.

It is torch's TCPStore, and in worlds whose ranks do not need torch that of store.py.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from commbench.core.case import RankIdentity
from commbench.core.errors import ConfigError
from commbench.core.protocols import Backend
from commbench.hardware.mpi_library import load, mismatch
from commbench.hardware.network import is_loopback, meeting_address, own_address

from .identity import host_identity
from .store import KeyValueStore, hosted_store

LOOPBACK = "127.0.0.1"
BACKLOG = 1024  # all ranks of a world connect at once
CONNECT_S = 120.0  # the slowest rank may still be importing from a network file system


def exported_address(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port of MASTER_ADDR and MASTER_PORT; None unless both are exported. Raises ValueError."""
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        return environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    return None


def store_at(host: str, port: int, owner: bool, torch: bool = True) -> Any:
    """The store at a given address, torch's or ours; its owner listens at that address only, where it is its own.

    A name that resolves to loopback here (/etc/hosts often says so of a host's own name) may be another address
    elsewhere: then the owner listens at all addresses. Raises OSError or RuntimeError.
    """
    if not owner:
        return client_store(host, port, torch)
    address = own_address(host)
    if address is None or (is_loopback(address) and host not in (address, "localhost")):
        address = ""
    return _server_store(host, port, address, torch)


def store_over_mpi(identity: RankIdentity, backend: Backend, interface: str | None) -> Any:
    """The store of a world without an exported address: rank 0 opens a port and broadcasts it over MPI.

    Raises ConfigError on all ranks if rank 0 can't open it.
    """
    mpi = load(backend.library or "auto", backend.threads)
    world = mpi.COMM_WORLD
    if world.size != identity.size:
        raise ConfigError(mismatch(identity.size, mpi))
    identities = world.allgather(host_identity())
    store: Any = None
    offer: tuple[str, int, str | None] = ("", 0, None)
    if world.rank == 0:
        try:
            address = rendezvous_address(identities, interface)
            store = _server_store(address, 0, address, backend.needs_torch)
            offer = (address, store.port, None)
        except (ConfigError, OSError, RuntimeError) as error:  # the other ranks must not wait for an address
            offer = ("", 0, f"rank 0 can't host the rendezvous: {error}")
    host, port, problem = world.bcast(offer)
    if problem is not None:
        raise ConfigError(problem)
    return store if store is not None else client_store(host, port, backend.needs_torch)


def rendezvous_address(identities: list[str], interface: str | None) -> str:
    """The address of the chosen interface, else loopback on one node, else that of the route to the other hosts.

    `identities` are the host identities of all ranks, rank 0's first. Raises ConfigError.
    """
    others = (identity.partition("|")[0] for identity in dict.fromkeys(identities) if identity != identities[0])
    return meeting_address(interface, *others)


def client_store(host: str, port: int, torch: bool, timeout_s: float | None = None) -> Any:
    """The store that another rank hosts."""
    if not torch:
        return KeyValueStore(host, port, timeout_s or CONNECT_S)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        host, port, is_master=False, timeout=timedelta(seconds=timeout_s or CONNECT_S), wait_for_workers=False
    )


def _server_store(host: str, port: int, address: str, torch: bool) -> Any:
    """A store that listens at `address` only ("": at all addresses); others know it as `host`. Port 0: a free one."""
    # one connection per rank: the usual limit of 1024 files would end a world of 1000 ranks
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if not address and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    else:
        listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
    return inherited_store(host, int(listener.getsockname()[1]), listener.detach(), torch)


def inherited_store(host: str, port: int, listening_fd: int, torch: bool = True) -> Any:
    """The store that this rank hosts, on a socket that listens already."""
    if not torch:
        return hosted_store(host, port, listening_fd)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=CONNECT_S),
        wait_for_workers=False,
        master_listen_fd=listening_fd,
    )
