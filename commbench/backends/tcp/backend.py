"""Plain TCP sockets, point to point: what the network gives without a library on top."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.core.case import Case, World
from commbench.core.errors import ConfigError, WorldBroken
from commbench.core.protocols import Backend, Control
from commbench.hardware.network import meeting_address
from commbench.world.peer_listener import PeerListener

from .communicator import NO_COLLECTIVES, TcpCommunicator
from .endpoint import Endpoint, Options

INTERFACE = "COMMBENCH_TCP_INTERFACE"  # exported from the key `interface`
MEETING_S = 120.0
INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Tcp(Backend):
    """See Backend. `library` is the MPI library whose mpirun starts its ranks, if one does.

    buffer_bytes: SO_SNDBUF and SO_RCVBUF (the kernel doubles and caps them); None leaves its autotuning on.
    timeout_s: how long a call on a socket may go without moving a byte.
    """

    name: ClassVar[str] = "tcp"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    launchers: ClassVar[str] = "any"
    axes: ClassVar[tuple[str, ...]] = ("streams",)
    joins_messages: ClassVar[bool] = True  # one sendmsg
    library: str = "auto"
    buffer_bytes: int | None = None
    no_delay: bool = True
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        size = self.buffer_bytes
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= INT_MAX):
            raise ConfigError(f"backend.buffer_bytes={size!r}: allowed are 1 to {INT_MAX}, or null for autotuning")
        if not isinstance(self.no_delay, bool):
            raise ConfigError(f"backend.no_delay={self.no_delay!r}: allowed are true and false")
        if isinstance(self.timeout_s, bool) or not isinstance(self.timeout_s, int | float):
            raise ConfigError(f"backend.timeout_s={self.timeout_s!r} must be a number of seconds")
        if not 0.001 <= self.timeout_s <= 1e6:
            raise ConfigError(f"backend.timeout_s={self.timeout_s!r} must be between 0.001 and 1000000 s")

    def missing(self, device: str = "cpu") -> str | None:
        return None if hasattr(socket, "TCP_INFO") else "backend tcp needs Linux: socket.TCP_INFO is missing"

    def supports(self, case: Case, size: int) -> str | None:
        if any(value is not None for value in (case.reduction, case.root, case.in_place)):
            return NO_COLLECTIVES
        return None

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        return {} if interface is None else {INTERFACE: interface}

    def open(self, world: World, control: Control, device: str = "cpu") -> TcpCommunicator:
        """Every rank listens; the addresses and a secret of 128 bits travel over the control plane.

        Raises ConfigError if a rank can't listen, WorldBroken if its first peers can't be reached.
        """
        listener, problem = None, None
        try:
            address = listening_address(world, control.store)
            listener = PeerListener("tcp", address, self.buffer_bytes)
        except (OSError, ConfigError) as error:
            problem = f"rank {world.rank} can't listen: {error}"
        mine = [problem, listener and listener.address, listener and listener.port]
        gathered = control.gather(mine, MEETING_S, "tcp addresses")
        agreed = control.decide(_agree(gathered) if world.rank == 0 else None, MEETING_S, "tcp addresses")
        if listener is None or "problem" in agreed:
            if listener is not None:
                listener.close()
            raise ConfigError(agreed["problem"])
        options = Options(self.buffer_bytes, self.no_delay, float(self.timeout_s))
        addresses = [(str(host), int(port)) for host, port in agreed["addresses"]]
        endpoint = Endpoint(world.rank, listener, bytes.fromhex(agreed["secret"]), addresses, options)
        try:
            return TcpCommunicator(endpoint, tuple(range(world.size)))
        except WorldBroken:
            endpoint.close()
            raise


def listening_address(world: World, store: Any) -> str:
    """That of the chosen interface; else loopback on one node; else that of the route to the meeting point.

    Raises ConfigError if there is none.
    """
    peers = [os.environ.get("MASTER_ADDR") or _store_host(store)] if len(world.nodes) > 1 else []
    return meeting_address(os.environ.get(INTERFACE) or None, *peers)


def _store_host(store: Any) -> str:
    """torch wraps a TCPStore into prefix stores; only the innermost one has the host."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", socket.gethostname()))


def _agree(gathered: list[Any]) -> dict[str, Any]:
    """On rank 0: what all ranks must know, or the first problem."""
    problem = next((problem for problem, *_ in gathered if problem is not None), None)
    if problem is not None:
        return {"problem": problem}
    return {"secret": secrets.token_hex(16), "addresses": [address for _, *address in gathered]}
