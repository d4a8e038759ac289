"""Plain TCP sockets, point to point: the wire under everything, and the measure of those who use it."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.core.case import Case, World
from commbench.core.errors import ConfigError, WorldBroken
from commbench.core.protocols import Backend, Control

from .address import INTERFACE, listening_address
from .communicator import TcpCommunicator
from .endpoint import Endpoint, Options
from .listener import Listener
from .lowering import NO_COLLECTIVES

MEETING_S = 120.0
INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Tcp(Backend):
    """See Backend. `library` is the MPI library of its mpirun, where it lives under one.

    buffer_bytes: SO_SNDBUF and SO_RCVBUF (the kernel doubles and caps them); None leaves its autotuning on.
    timeout_s: how long a call on a socket may go without moving a byte.
    """

    name: ClassVar[str] = "tcp"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    launchers: ClassVar[tuple[str, ...]] = ("torchrun", "mpirun", "srun")
    axes: ClassVar[tuple[str, ...]] = ("streams",)
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
            raise ConfigError(f"backend.timeout_s={self.timeout_s!r} is no number of seconds")
        if not 0.001 <= self.timeout_s <= 1e6:
            raise ConfigError(f"backend.timeout_s={self.timeout_s!r} lies outside 0.001 to 1000000 s")

    def missing(self, device: str = "cpu") -> str | None:
        return None if hasattr(socket, "TCP_INFO") else "backend tcp needs Linux: socket.TCP_INFO is missing"

    def supports(self, case: Case, size: int) -> str | None:
        if any(value is not None for value in (case.reduction, case.root, case.in_place)):
            return NO_COLLECTIVES
        return None

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        return {} if interface is None else {INTERFACE: interface}

    def open(self, world: World, control: Control, device: str = "cpu") -> TcpCommunicator:
        """Every rank listens; addresses and a secret of 128 bits go over the control plane.

        Raises ConfigError where a rank can't listen, WorldBroken where its first peers can't be reached.
        """
        listener, problem = None, None
        try:
            listener = Listener(listening_address(world, getattr(control, "store", None)), self.buffer_bytes)
        except (OSError, ConfigError) as error:
            problem = f"rank {world.rank} can't listen: {error}"
        here = [problem, listener and listener.address, listener and listener.port]
        gathered = control.gather(here, MEETING_S, "tcp addresses")
        agreed = control.decide(_agreed(gathered) if world.rank == 0 else None, MEETING_S, "tcp addresses")
        if listener is None or "problem" in agreed:
            if listener is not None:
                listener.close()
            raise ConfigError(agreed["problem"])
        return self._joined(world, listener, agreed)

    def _joined(self, world: World, listener: Listener, agreed: dict[str, Any]) -> TcpCommunicator:
        options = Options(self.buffer_bytes, self.no_delay, float(self.timeout_s))
        addresses = [(str(host), int(port)) for host, port in agreed["addresses"]]
        endpoint = Endpoint(world.rank, listener, bytes.fromhex(agreed["secret"]), addresses, options)
        try:
            return TcpCommunicator(endpoint, tuple(range(world.size)))
        except WorldBroken:
            endpoint.close()
            raise


def _agreed(gathered: list[Any]) -> dict[str, Any]:
    """Rank 0's part: what all must know, or the first problem."""
    problem = next((one for one, *_ in gathered if one is not None), None)
    if problem is not None:
        return {"problem": problem}
    return {"secret": secrets.token_hex(16), "addresses": [address for _, *address in gathered]}
