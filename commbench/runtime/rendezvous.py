"""Which rank this process is, how the ranks of a world find each other, and which share a node.

Launchers export the rank. The ranks meet at a store, at an exported address or at one that is sent
over MPI, and agree on the nodes there. The store is torch's TCPStore, and in worlds whose ranks do
not need torch that of store.py.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import resource
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from commbench.core.case import RankIdentity, World
from commbench.core.errors import ConfigError, Missing, WorldBroken
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Control
from commbench.hardware.mpi_library import launcher_mismatch, load_mpi
from commbench.hardware.network import (
    BACKLOG,
    is_loopback,
    meeting_address,
    network_advice,
    own_address,
    socket_family,
)
from commbench.hardware.sources import read_line, read_link
from commbench.results.columns import grouped

from .start_limit import ends_within
from .store import KeyValueStore, connected, hosted_store

HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # or an IPv4 address
LARGEST_PORT = 2**16 - 1
LEAST_OPEN_FILES = 64  # of a rank; two on gloo need 40
# the slowest rank may still import from a network file system
CONNECT_S = FIRST_MEETING_S = 120.0
PATIENCE = 1.5  # times the deadline: rank 0 must first find out who is missing, and record it


# ---------------------------------------------------------------- ranks and nodes


def exported_identity(
    launcher: str,
    environ: Mapping[str, str],
    rank: str,
    size: str,
    local_rank: str,
    node_id: str | None = None,
) -> RankIdentity:
    """The identity that the variables of these names hold; a missing local rank is 0. Raises
    ConfigError."""
    try:
        values = [
            int(environ.get(name, "0" if name == local_rank else ""))
            for name in (rank, size, local_rank)
        ]
        if not 0 <= values[0] < values[1]:
            raise ValueError("a rank outside of its world")
    except ValueError as error:
        seen = ", ".join(f"{name}={environ.get(name)!r}" for name in (rank, size, local_rank))
        raise ConfigError(
            f"{launcher} exported no usable ranks: {seen}; start again with {launcher}"
        ) from error
    node = None if node_id is None else environ.get(node_id)
    return RankIdentity(launcher, values[0], values[1], values[2], node, (rank, size))


def exported_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT. Raises ConfigError for values that are none."""
    return exported_host(environ), exported_port(environ)


def exported_host(environ: Mapping[str, str]) -> str:
    """MASTER_ADDR. Raises ConfigError where it is neither a name nor an address."""
    host = environ.get("MASTER_ADDR", "")
    try:
        is_host = bool(HOST_NAME.fullmatch(host) or ipaddress.IPv6Address(host))
    except ValueError:
        is_host = False
    if not is_host:
        raise ConfigError(
            f"MASTER_ADDR={host!r} is not a host; export the name or address of rank 0's host"
        )
    return host


def exported_port(environ: Mapping[str, str]) -> int:
    """MASTER_PORT. Raises ConfigError where it is no port."""
    text = environ.get("MASTER_PORT", "")
    if text.isdecimal() and 0 < int(text) <= LARGEST_PORT:
        return int(text)
    origin = "Kubernetes sets it for a service named master; " if "://" in text else ""
    raise ConfigError(
        f"MASTER_PORT={text!r} is not a port from 1 to {LARGEST_PORT}; {origin}export a free port"
        " of rank 0's host"
    )


def host_identity() -> str:
    """Equal for processes that share a kernel, a host name and a network namespace: those are one
    node."""
    boot_id = read_line(Path("/proc/sys/kernel/random/boot_id"))
    network = read_link(Path("/proc/self/ns/net"))
    return "|".join([socket.gethostname(), boot_id or "", network or ""])


def assemble(identity: RankIdentity, control: Control) -> World:
    """Agree on the nodes: ranks with the same host identity and the same node id of their launcher
    share one."""
    # a store that is not rank 0's (torchrun's agent has one) may be there without rank 0
    try:
        control.decide(None, FIRST_MEETING_S / PATIENCE, "the first meeting")
    except Missing as missing:  # rank 0 will not say it
        raise WorldBroken(f"{missing}; start rank 0 as well") from missing
    host = f"{identity.node_id or ''}|{host_identity()}"
    hosts = control.gather(host, FIRST_MEETING_S, "the first meeting")
    ranks_by_host = grouped(range(len(hosts)), hosts.__getitem__)
    nodes = control.decide(list(ranks_by_host.values()), FIRST_MEETING_S, "the first meeting")
    return World(
        identity.rank,
        identity.size,
        tuple(map(tuple, nodes)),
        (identity.rank,),
        identity.launcher,
    )


def check_layouts(layouts: Sequence[Layout], world: World) -> None:
    """Raises ConfigError where no layout fits into this world."""
    misfits = [layout.misfit(world) for layout in layouts]
    if all(misfits):
        taken = "" if world.launcher == "none" else f", taken from {world.launcher}'s variables"
        raise ConfigError(
            f"{misfits[0]}{taken}; start more ranks or choose a smaller layout", shared=True
        )


# ---------------------------------------------------------------- the store


def store_at(host: str, port: int, owner: bool, torch: bool = True) -> Any:
    """The store at a given address, torch's or ours. Its owner listens at that address only, if it
    is its own.

    A name that resolves to loopback here (/etc/hosts often says so of a host's own name) may be
    another address elsewhere: then the owner listens at all addresses. Raises OSError or
    RuntimeError.
    """
    if not owner:
        return client_store(host, port, torch)
    address = own_address(host)
    if address is None or (is_loopback(address) and host not in (address, "localhost")):
        address = ""
    try:
        return server_store(host, port, address, torch)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise RuntimeError(
            f"port {port} of this host is held by another process; export another MASTER_PORT"
        ) from error


def store_over_mpi(identity: RankIdentity, backend: Backend, interface: str | None) -> Any:
    """The store of a world without an exported address: rank 0 opens a port and broadcasts it over
    MPI.

    Raises ConfigError on all ranks if rank 0 can't open it.
    """
    advice = partial(network_advice, "a rank has not started, or the hosts do not reach each other")
    with ends_within(CONNECT_S, "MPI_Init", advice, identity):
        mpi = load_mpi(backend.library or "auto", backend.threads, identity.rank == 0)
    world = mpi.COMM_WORLD
    if world.size != identity.size:
        raise ConfigError(launcher_mismatch(identity.size, mpi))
    exchange_ends = partial(ends_within, CONNECT_S, "the first exchange over MPI", advice, identity)
    with exchange_ends():
        identities = world.allgather(host_identity())
    store = None
    host = ""
    port = 0
    problem = None
    if world.rank == 0:
        try:
            host = rendezvous_address(identities, interface)
            store = server_store(host, 0, host, backend.needs_torch)
            port = store.port
        # the other ranks must not wait for an address
        except (ConfigError, OSError, RuntimeError) as error:
            problem = f"rank 0 can't host the rendezvous: {error}"
    with exchange_ends():
        host, port, problem = world.bcast((host, port, problem))
    if problem is not None:
        raise ConfigError(problem, shared=True)
    return store or client_store(host, port, backend.needs_torch)


def rendezvous_address(identities: list[str], interface: str | None) -> str:
    """The address of the chosen interface, else loopback on one node, else that of the route to the
    other hosts.

    `identities` are the host identities of all ranks, rank 0's first. Raises ConfigError.
    """
    others = (
        identity.partition("|")[0]
        for identity in dict.fromkeys(identities)
        if identity != identities[0]
    )
    return meeting_address(interface, *others)


def meeting_host(store: Any) -> str:
    """The host of rank 0, as this rank reaches it over the store."""
    # of torch's prefix stores only the innermost one has the host
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return os.environ.get("MASTER_ADDR") or str(getattr(store, "host", socket.gethostname()))


def address_for_peers(interface: str | None, world: World, store: Any) -> str:
    """The address of the chosen interface; else loopback on one node; else that of the route to the
    meeting point. Raises ConfigError if there is none."""
    return meeting_address(interface, *([meeting_host(store)] if len(world.nodes) > 1 else []))


def client_store(host: str, port: int, torch: bool, timeout_s: float | None = None) -> Any:
    """The store that another rank hosts.

    torch's own client takes more than twice the timeout, and prints a stack: it must find a port
    that is open. Raises RuntimeError.
    """
    timeout_s = timeout_s or CONNECT_S
    if not torch:
        return KeyValueStore(host, port, timeout_s)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=timeout_s)
    connected(host, port, timeout_s).close()
    return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


def allow_open_files() -> None:
    """Let this rank open as many files as its user may: a store has a connection of each rank.

    Raises ConfigError where that is too few: libraries would try again for minutes, without a word.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < LEAST_OPEN_FILES:
        raise ConfigError(
            f"a process of this user may open {most} files, and a rank needs at least"
            f" {LEAST_OPEN_FILES}; raise the limit: ulimit -n 1024",
            shared=True,
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def server_store(host: str, port: int, address: str, torch: bool) -> Any:
    """A store that listens at `address` only ("": at all addresses); others know it as `host`. Port
    0: a free one."""
    if not address and socket.has_dualstack_ipv6():
        listener = socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
        )
    else:
        listener = socket.create_server(
            (address, port), family=socket_family(address), backlog=BACKLOG
        )
    return inherited_store(host, int(listener.getsockname()[1]), listener.detach(), torch)


def inherited_store(host: str, port: int, listening_fd: int, torch: bool = True) -> Any:
    """The store that this rank hosts, on a socket that listens already."""
    if not torch:
        return hosted_store(host, port, listening_fd)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=CONNECT_S)
    connected(host, port, CONNECT_S).close()  # as in client_store: it connects to itself
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listening_fd,
    )
