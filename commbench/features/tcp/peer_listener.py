"""Sockets between the ranks of a world: a listener that accepts only the connections of its peers.

A peer sends a secret, which the ranks exchange over the control plane, and receives one byte as the
answer.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from commbench.hardware.network import BACKLOG, socket_family

GREETING = struct.Struct("!16sIi")  # the secret, the rank that connects, which of its connections
WELCOME = b"\x06"
GREETING_TIMEOUT_S = 5.0
MAX_PENDING = 256  # connections that have not sent their greeting yet
LISTENER_POLL_S = 0.5
ACCEPT_RETRY_S = 0.01

PeerStream = tuple[int, int]  # peer, stream
Admit = Callable[[int, int, socket.socket], bool]  # peer, stream, its socket


@dataclass(eq=False)
class PendingPeer:
    socket: socket.socket
    deadline_s: float
    received: bytes = b""


def greet(connected: socket.socket, secret: bytes, rank: int, stream: int = 0) -> None:
    """Introduce this rank to a PeerListener. Raises OSError, also if the listener refuses."""
    connected.sendall(GREETING.pack(secret, rank, stream))
    if connected.recv(len(WELCOME)) != WELCOME:
        raise ConnectionError("it hung up after the greeting")


class PeerListener:
    """Accepts connections in a thread. One that does not begin with the secret is dropped; others
    are not affected.

    `purpose` names it in messages. `buffer_bytes` is for both socket buffers, None leaves them to
    the kernel.
    """

    def __init__(self, purpose: str, address: str, buffer_bytes: int | None = None) -> None:
        """Raises OSError."""
        self.socket = socket.socket(socket_family(address), socket.SOCK_STREAM)
        # an accepted connection inherits them, with the scale of its window
        set_buffers(self.socket, buffer_bytes)
        try:
            self.socket.bind((address, 0))
            self.socket.listen(BACKLOG)
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)
        self.address = address
        self.port = int(self.socket.getsockname()[1])
        self._purpose = purpose
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._woken = socket.socketpair()
        self._pending: list[PendingPeer] = []  # the oldest first
        self._arrivals: dict[PeerStream, socket.socket] = {}
        self._arrived = threading.Condition()
        self._open = True
        self._warned = False
        self._thread: threading.Thread | None = None

    def serve(self, secret: bytes, admit: Admit) -> None:
        """Begin to accept; earlier connections have waited in the kernel's backlog.

        `admit` returns whether that connection is expected, and may set options of its socket. It
        runs in the thread.
        """
        self._secret = secret
        self._admit = admit
        self._selector.register(self.socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(
            target=self._serve, name=f"commbench-{self._purpose}-listener", daemon=True
        )
        self._thread.start()

    def wait_for(self, key: PeerStream, timeout_s: float) -> socket.socket | None:
        """The connection of that peer and stream, once; None if it does not arrive in time."""
        with self._arrived:
            self._arrived.wait_for(lambda: key in self._arrivals, timeout_s)
            return self._arrivals.pop(key, None)

    def close(self) -> None:
        self._open = False
        self._wake_up.close()
        if self._thread is not None:
            self._thread.join()
        pending = (peer.socket for peer in self._pending)
        for opened in (self.socket, self._woken, *pending, *self._arrivals.values()):
            opened.close()
        self._selector.close()

    def _serve(self) -> None:
        while self._open:
            for key, _ in self._selector.select(LISTENER_POLL_S if self._pending else None):
                if key.fileobj is self.socket:
                    self._accept()
                elif key.data in self._pending:
                    self._receive(key.data)
            now = time.monotonic()
            for late in [pending for pending in self._pending if pending.deadline_s < now]:
                self._drop(late, "sent no valid greeting in time")

    def _accept(self) -> None:
        try:
            connection, _ = self.socket.accept()
        # the peer has left, or no file descriptor is free: wait before the next attempt
        except OSError:
            time.sleep(ACCEPT_RETRY_S)
            return
        if len(self._pending) >= MAX_PENDING:
            self._drop(self._pending[0], "is the oldest of too many that sent no greeting")
        connection.setblocking(False)
        self._pending.append(PendingPeer(connection, time.monotonic() + GREETING_TIMEOUT_S))
        self._selector.register(connection, selectors.EVENT_READ, self._pending[-1])

    def _receive(self, pending: PendingPeer) -> None:
        try:
            received = pending.socket.recv(GREETING.size - len(pending.received))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        pending.received += received
        if not received:
            self._drop(pending, "left without a greeting")
        elif len(pending.received) == GREETING.size:
            self._verify(pending)

    def _verify(self, pending: PendingPeer) -> None:
        secret, peer, stream = GREETING.unpack(pending.received)
        if not hmac.compare_digest(secret, self._secret):
            self._drop(pending, "does not know the secret of this world")
            return
        pending.socket.setblocking(True)
        if not self._admit(peer, stream, pending.socket):
            self._drop(pending, f"greets as rank {peer}, stream {stream}")
            return
        self._forget(pending)
        with suppress(OSError):  # if the peer has hung up, the user of the connection will notice
            pending.socket.sendall(WELCOME)
        with self._arrived:
            replaced = self._arrivals.pop((peer, stream), None)
            if replaced is not None:
                replaced.close()
            self._arrivals[peer, stream] = pending.socket
            self._arrived.notify_all()

    def _drop(self, pending: PendingPeer, reason: str) -> None:
        """Warns once: a port scanner must not fill the log."""
        self._forget(pending)
        if not self._warned:
            self._warned = True
            text = (
                f"dropped a connection to port {self.port} that {reason}; further ones are not"
                " reported"
            )
            print(f"{self._purpose}: {text}", file=sys.stderr)
        pending.socket.close()

    def _forget(self, pending: PendingPeer) -> None:
        self._selector.unregister(pending.socket)
        self._pending.remove(pending)


def set_buffers(unconnected: socket.socket, buffer_bytes: int | None) -> None:
    """Fix the size of both buffers, before the socket is connected; None leaves them to the
    kernel's autotuning."""
    if buffer_bytes is not None:
        unconnected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        unconnected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
