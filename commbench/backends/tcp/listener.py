"""The open door of a rank: accepts its peers' connections, and nobody else's."""

from __future__ import annotations

import hmac
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

GREETING = struct.Struct("!16sIi")  # the world's secret, who connects, which of its streams
WELCOME = b"\x06"
PATIENCE_S = 5.0  # for a greeting
MOST_GUESTS = 256  # that have not greeted yet
BACKLOG = 1024
TICK_S = 0.5
RETRY_S = 0.01

Arrived = Callable[[int, int, socket.socket], bool]  # peer, stream, its connection; False: nobody we know


@dataclass
class Guest:
    socket: socket.socket
    until: float
    said: bytes = b""


class Listener:
    """One sleeping thread. Whoever does not greet with the secret is dropped, and changes nothing."""

    def __init__(self, address: str, buffer_bytes: int | None) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        set_buffers(self.socket, buffer_bytes)  # an accepted connection inherits them, with its window's scale
        try:
            self.socket.bind((address, 0))
            self.socket.listen(BACKLOG)
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)
        self.address, self.port = address, int(self.socket.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._waker, self._sleeper = socket.socketpair()
        self._guests: dict[socket.socket, Guest] = {}
        self._open, self._warned = True, False
        self._thread: threading.Thread | None = None

    def serve(self, secret: bytes, arrived: Arrived) -> None:
        """Begin to accept; who came before waits in the kernel's backlog."""
        self._secret, self._arrived = secret, arrived
        self._selector.register(self.socket, selectors.EVENT_READ)
        self._selector.register(self._sleeper, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="commbench-tcp-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._open = False
        self._waker.close()
        if self._thread is not None:
            self._thread.join()
        for one in (self.socket, self._sleeper, *self._guests):
            one.close()
        self._selector.close()

    def _serve(self) -> None:
        while self._open:
            for key, _ in self._selector.select(TICK_S if self._guests else None):
                guest = self._guests.get(cast(socket.socket, key.fileobj))
                if key.fileobj is self.socket:
                    self._accept()
                elif guest is not None:
                    self._listen_to(guest)
            now = time.monotonic()
            for guest in [one for one in self._guests.values() if one.until < now]:
                self._drop(guest, "said nothing that we know")

    def _accept(self) -> None:
        try:
            connection, _ = self.socket.accept()
        except OSError:  # gone again, or no descriptor is free: then don't ask at once
            time.sleep(RETRY_S)
            return
        if len(self._guests) >= MOST_GUESTS:
            self._drop(next(iter(self._guests.values())), "made room for others")
        connection.setblocking(False)
        self._guests[connection] = Guest(connection, time.monotonic() + PATIENCE_S)
        self._selector.register(connection, selectors.EVENT_READ)

    def _listen_to(self, guest: Guest) -> None:
        try:
            heard = guest.socket.recv(GREETING.size - len(guest.said))
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        guest.said += heard
        if not heard:
            self._drop(guest, "left without a greeting")
        elif len(guest.said) == GREETING.size:
            self._judge(guest)

    def _judge(self, guest: Guest) -> None:
        secret, peer, stream = GREETING.unpack(guest.said)
        if not hmac.compare_digest(secret, self._secret):
            self._drop(guest, "does not know the secret of this world")
            return
        self._forget(guest)
        guest.socket.setblocking(True)
        if not self._arrived(peer, stream, guest.socket):
            self._warn(guest, f"greets as rank {peer}, stream {stream}")
            guest.socket.close()

    def _drop(self, guest: Guest, why: str) -> None:
        self._forget(guest)
        self._warn(guest, why)
        guest.socket.close()

    def _forget(self, guest: Guest) -> None:
        self._selector.unregister(guest.socket)
        del self._guests[guest.socket]

    def _warn(self, guest: Guest, why: str) -> None:
        """Once: a port scanner must not fill the log."""
        if not self._warned:
            self._warned = True
            text = f"tcp: a stranger at port {self.port} {why}; dropped, as all further ones will be"
            print(text, file=sys.stderr)


def set_buffers(one: socket.socket, buffer_bytes: int | None) -> None:
    """Fix both buffers, before a connection is made; None leaves them to the kernel's autotuning."""
    if buffer_bytes is not None:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
