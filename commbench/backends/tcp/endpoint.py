"""A rank's end of all its connections: made when a program names a peer, kept for later cases."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from commbench.core.errors import WorldBroken

from .connection import Connection
from .listener import GREETING, WELCOME, Listener, set_buffers
from .thread_pool import ThreadPool

BARRIER = -1  # the stream of the barriers' bytes
MOST_STREAMS = 64
Key = tuple[int, int]  # world rank of the peer, stream


@dataclass(frozen=True)
class Options:
    """Of every connection."""

    buffer_bytes: int | None
    no_delay: bool
    timeout_s: float


class Endpoint:
    """The lower rank of a pair connects, the higher one waits for its listener's thread: no order can deadlock."""

    def __init__(
        self, rank: int, listener: Listener, secret: bytes, addresses: Sequence[tuple[str, int]], options: Options
    ) -> None:
        self.rank, self.listener, self.crew = rank, listener, ThreadPool()
        self._secret, self._addresses, self._options = secret, addresses, options
        self._connections: dict[Key, Connection] = {}
        self._arrivals: dict[Key, socket.socket] = {}
        self._news = threading.Condition()
        listener.serve(secret, self._arrived)

    def __getitem__(self, key: Key) -> Connection:
        return self._connections[key]

    def connect(self, wanted: Iterable[Key]) -> None:
        """Make the connections that are missing or broken. The peers must do so too; raises WorldBroken."""
        missing = sorted(key for key in set(wanted) if not self._lives(key))
        called: dict[Key, socket.socket] = {}
        try:
            for key in missing:
                if key[0] >= self.rank:
                    called[key] = self._call(*key)
            for key in missing:
                inward = self._await(key) if key[0] <= self.rank else called[key]
                outward = called.pop(key, inward)
                self._connections[key] = Connection(key, outward, inward, self._options.timeout_s, self.abort)
        finally:
            for one in called.values():  # made, but of no use without the others
                one.close()

    def sample(self) -> socket.socket:
        """A socket that knows what the kernel gives to all: of a peer, else the listener's."""
        living = (one.outward for one in self._connections.values() if one.cause is None)
        return next(living, self.listener.socket)

    def abort(self, cause: Exception) -> None:
        """A failed case leaves bytes under way: nothing that was open is of use to the next one."""
        for connection in list(self._connections.values()):
            connection.abort(cause)

    def close(self) -> None:
        self.listener.close()
        self.abort(ConnectionAbortedError("closed here"))
        self.crew.close()
        for connection in self._connections.values():
            connection.close()
        for arrival in self._arrivals.values():
            arrival.close()

    def _lives(self, key: Key) -> bool:
        known = self._connections.get(key)
        if known is not None and not known.alive():
            self._connections.pop(key).close()
            return False
        return known is not None

    def _call(self, peer: int, stream: int) -> socket.socket:
        host, port = self._addresses[peer]
        one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            set_buffers(one, self._options.buffer_bytes)
            self._set_delay(one, stream)
            one.settimeout(self._options.timeout_s)
            one.connect((host, port))
            one.sendall(GREETING.pack(self._secret, self.rank, stream))
            if one.recv(len(WELCOME)) != WELCOME:
                raise ConnectionError("it hung up after the greeting")
        except OSError as error:
            one.close()
            why = f"rank {self.rank} can't reach rank {peer} at {host} port {port}: {error}"
            raise WorldBroken(f"{why}; a firewall, or the wrong interface=NAME?") from error
        return one

    def _await(self, key: Key) -> socket.socket:
        with self._news:
            if not self._news.wait_for(lambda: key in self._arrivals, self._options.timeout_s):
                why = f"rank {key[0]} did not connect to rank {self.rank}"
                raise WorldBroken(f"{why} within {self._options.timeout_s:g} s (backend.timeout_s)")
            return self._arrivals.pop(key)

    def _arrived(self, peer: int, stream: int, one: socket.socket) -> bool:
        """In the listener's thread."""
        if not (0 <= peer <= self.rank and BARRIER <= stream < MOST_STREAMS):
            return False
        with suppress(OSError):  # it hung up; whoever uses the connection will hear of it
            self._set_delay(one, stream)
            one.sendall(WELCOME)
        with self._news:
            stale: Any = self._arrivals.pop((peer, stream), None)
            if stale is not None:
                stale.close()
            self._arrivals[peer, stream] = one
            self._news.notify_all()
        return True

    def _set_delay(self, one: socket.socket, stream: int) -> None:
        at_once = self._options.no_delay or stream == BARRIER
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(at_once))
