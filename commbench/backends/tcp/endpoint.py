"""The connections of a rank: made when a program names a peer, kept for later cases."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from commbench.core.errors import WorldBroken
from commbench.world.peer_listener import Key, PeerListener, greet, set_buffers, socket_family

from .connection import Connection, ThreadPool

BARRIER = -1  # the stream of the barriers' bytes
MAX_STREAMS = 64


@dataclass(frozen=True)
class Options:
    """Socket options of all connections."""

    buffer_bytes: int | None
    no_delay: bool
    timeout_s: float


class Endpoint:
    """The lower rank of a pair connects, the higher one waits for its listener's thread: no order can deadlock.

    Connections are found by world rank of the peer and stream.
    """

    def __init__(
        self, rank: int, listener: PeerListener, secret: bytes, addresses: Sequence[tuple[str, int]], options: Options
    ) -> None:
        self.rank, self.listener, self.threads = rank, listener, ThreadPool()
        self._secret, self._addresses, self._options = secret, addresses, options
        self._connections: dict[Key, Connection] = {}
        listener.serve(secret, self._admit)

    def __getitem__(self, key: Key) -> Connection:
        return self._connections[key]

    def connect(self, keys: Iterable[Key]) -> None:
        """Make the connections that are missing or broken. The peers must do so too; raises WorldBroken."""
        missing = sorted(key for key in set(keys) if not self._is_connected(key))
        connected: dict[Key, socket.socket] = {}
        try:
            for key in missing:
                if key[0] >= self.rank:
                    connected[key] = self._connect(*key)
            for key in missing:
                inward = self._accepted(key) if key[0] <= self.rank else connected[key]
                outward = connected.pop(key, inward)
                self._connections[key] = Connection(key, outward, inward, self._options.timeout_s, self.abort)
        finally:
            for unused in connected.values():
                unused.close()

    def sample(self) -> socket.socket:
        """A socket with the settings of all: of a connection, or the listener's if there is none."""
        working = (connection.outward for connection in self._connections.values() if connection.cause is None)
        return next(working, self.listener.socket)

    def abort(self, cause: Exception) -> None:
        """A failed case leaves bytes in flight: the next one can use none of the open connections."""
        for connection in list(self._connections.values()):
            connection.abort(cause)

    def close(self) -> None:
        self.listener.close()
        self.abort(ConnectionAbortedError("closed here"))
        self.threads.close()
        for connection in self._connections.values():
            connection.close()

    def _is_connected(self, key: Key) -> bool:
        connection = self._connections.get(key)
        if connection is not None and not connection.alive():
            self._connections.pop(key).close()
            return False
        return connection is not None

    def _connect(self, peer: int, stream: int) -> socket.socket:
        host, port = self._addresses[peer]
        connected = socket.socket(socket_family(host), socket.SOCK_STREAM)
        try:
            set_buffers(connected, self._options.buffer_bytes)
            self._set_no_delay(connected, stream)
            connected.settimeout(self._options.timeout_s)
            connected.connect((host, port))
            greet(connected, self._secret, self.rank, stream)
        except OSError as error:
            connected.close()
            reason = f"rank {self.rank} can't reach rank {peer} at {host} port {port}: {error}"
            raise WorldBroken(f"{reason}; check for a firewall, or choose another interface=NAME") from error
        return connected

    def _accepted(self, key: Key) -> socket.socket:
        accepted = self.listener.wait_for(key, self._options.timeout_s)
        if accepted is None:
            reason = f"rank {key[0]} did not connect to rank {self.rank}"
            raise WorldBroken(f"{reason} within {self._options.timeout_s:g} s (backend.timeout_s)")
        return accepted

    def _admit(self, peer: int, stream: int, accepted: socket.socket) -> bool:
        if not (0 <= peer <= self.rank and BARRIER <= stream < MAX_STREAMS):
            return False
        with suppress(OSError):  # if it has hung up, whoever uses the connection will notice
            self._set_no_delay(accepted, stream)
        return True

    def _set_no_delay(self, connection: socket.socket, stream: int) -> None:
        no_delay = self._options.no_delay or stream == BARRIER
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(no_delay))
