"""Plain TCP sockets, point to point: what the network gives without a library on top."""

from __future__ import annotations

import os
import platform
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.backends.buffers.memory import HostBuffer, rotation_pool
from commbench.core.case import World
from commbench.core.errors import ConfigError, WorldBroken
from commbench.core.program import BufferSpec, Message, Program, operation_of
from commbench.core.protocols import Backend, Buffer, Control, RankCommunicator, Runner
from commbench.core.units import INT_MAX
from commbench.core.variables import Case, Device, Ipc, Mode
from commbench.engines.lowered import Lowered, PythonRunner, has_collectives, with_own_steps
from commbench.results.network_cards import interface_rails
from commbench.runtime.rendezvous import address_for_peers

from .lowering import (
    BARRIER,
    TCP_NO_COLLECTIVES,
    Endpoint,
    SocketOptions,
    TcpLowering,
    barrier_partners,
)
from .peer_listener import PeerListener, PeerStream

INTERFACE = "COMMBENCH_TCP_INTERFACE"  # exported from the key `interface`
EXCHANGE_S = 120.0


@dataclass(frozen=True)
class Tcp(Backend):
    """See Backend. `library` is the MPI library whose mpirun starts its ranks, if one does.

    buffer_bytes: SO_SNDBUF and SO_RCVBUF (the kernel doubles and caps them); None leaves its
    autotuning on. timeout_s: how long a call on a socket may go without moving a byte.
    """

    name = "tcp"
    devices = ("cpu",)
    axes = ("streams",)
    joins_messages = True  # one sendmsg
    library: str = "auto"
    buffer_bytes: int | None = None
    no_delay: bool = True
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.buffer_bytes is not None and not 1 <= self.buffer_bytes <= INT_MAX:
            allowed = f"allowed are 1 to {INT_MAX}, or null for autotuning"
            raise ConfigError(f"backend.buffer_bytes={self.buffer_bytes}: {allowed}")
        if not 0.001 <= self.timeout_s <= 1e6:
            raise ConfigError(
                f"backend.timeout_s={self.timeout_s} must be between 0.001 and 1000000 s"
            )

    def missing(self, device: Device = "cpu") -> str | None:
        return None

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        return TCP_NO_COLLECTIVES if has_collectives(program) else None

    def rails(self, facts: Mapping[str, Any]) -> list[str]:
        return [f"interface={name}" for name in interface_rails(facts)]

    def environment(self, cuda_ipc: Ipc, interface: str | None) -> dict[str, str]:
        return {} if interface is None else {INTERFACE: interface}

    def open(self, world: World, control: Control, device: Device = "cpu") -> TcpCommunicator:
        """Every rank listens; the addresses and a secret of 128 bits travel over the control plane.

        Raises ConfigError if a rank can't listen, WorldBroken if its first peers can't be reached.
        """
        listener = None
        problem = None
        try:
            interface = os.environ.get(INTERFACE) or None
            address = address_for_peers(interface, world, control.store)
            listener = PeerListener("tcp", address, self.buffer_bytes)
        except (OSError, ConfigError) as error:
            problem = f"rank {world.rank} can't listen: {error}"
        mine = [problem, listener and listener.address, listener and listener.port]
        gathered = control.gather(mine, EXCHANGE_S, "tcp addresses")
        states, secret = control.decide(
            [gathered, secrets.token_hex(16)], EXCHANGE_S, "tcp addresses"
        )
        reason = next((problem for problem, *_ in states if problem is not None), None)
        if listener is None or reason is not None:
            if listener is not None:
                listener.close()
            raise ConfigError(str(reason), shared=True)
        options = SocketOptions(self.buffer_bytes, self.no_delay, float(self.timeout_s))
        addresses = [(str(host), int(port)) for _, host, port in states]
        endpoint = Endpoint(world.rank, listener, bytes.fromhex(secret), addresses, options)
        try:
            return TcpCommunicator(endpoint, tuple(range(world.size)))
        except WorldBroken:
            endpoint.close()
            raise


class TcpCommunicator(RankCommunicator):
    """See RankCommunicator. `ranks` are world ranks, in the order of this communicator."""

    def __init__(self, endpoint: Endpoint, ranks: tuple[int, ...]) -> None:
        self.endpoint = endpoint
        self.ranks = ranks
        self.size = len(ranks)
        self.hosted = (ranks.index(endpoint.rank),)
        # by the program prepared last: peer in this communicator, stream
        self._used: list[PeerStream] = []
        # all its ranks do this at the same time: a peer that can't be reached is found before
        # anything is measured
        endpoint.connect(self._barrier_keys())

    def subset(self, ranks: Sequence[int]) -> TcpCommunicator | None:
        members = tuple(self.ranks[rank] for rank in ranks)
        return TcpCommunicator(self.endpoint, members) if self.endpoint.rank in members else None

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return HostBuffer(spec, pool)

    def runner(self, program: Program, buffers: Mapping[str, HostBuffer], mode: Mode) -> Runner:
        """Also connects to the peers that the program names; raises WorldBroken if one can't be
        reached."""
        operations = map(operation_of, (*program.reset, *program.from_lead))
        peers = {step.peer for step in operations if isinstance(step, Message)}
        self._used = [(peer, stream) for peer in sorted(peers) for stream in range(mode.streams)]
        keys = [(self.ranks[peer], stream) for peer, stream in self._used]
        if mode.fresh:
            self.endpoint.disconnect(keys)
        self.endpoint.connect([*keys, *self._barrier_keys()])
        lowering = TcpLowering(self.endpoint, self.ranks, self.hosted[0], mode.streams, buffers)
        if program.runner is not None:
            own: Runner = program.runner(lowering, program, mode)
            return own
        lower = with_own_steps(lowering.call, self, mode.engine)
        return PythonRunner(Lowered.of(program, mode.sync, lower), rotation_pool(buffers))

    def counters(self) -> dict[str, float]:
        """TCP_INFO of the connections of the program prepared last, counted since each was made."""
        return {
            f"tcp.peer{peer}.stream{stream}.{name}": value
            for peer, stream in self._used
            for name, value in self.endpoint[self.ranks[peer], stream].info().items()
        }

    def facts(self) -> dict[str, Any]:
        """The settings of a connection, or of the listener if there is none; buffer sizes as the
        kernel counts."""
        sample = self.endpoint.sample()
        congestion_control = sample.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        facts = {
            "library": f"kernel {platform.release()} tcp",
            "transport": "tcp",
            "address": self.endpoint.listener.address,
            "congestion_control": congestion_control.split(b"\0")[0].decode(),
            "sndbuf_bytes": sample.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            "rcvbuf_bytes": sample.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        }
        if self.endpoint.initial_cwnd is not None:
            facts["initial_cwnd_segments"] = self.endpoint.initial_cwnd
        if sample is not self.endpoint.listener.socket:
            facts["mss_bytes"] = sample.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        return facts

    def close(self, abort: bool = False) -> None:
        self.endpoint.close()

    def _barrier_keys(self) -> set[PeerStream]:
        partners = barrier_partners(self.hosted[0], self.size)
        return {(self.ranks[peer], BARRIER) for pair in partners for peer in pair}
