"""A key-value store for ranks that do not need torch: for its TCPStore alone each of them would
have to import torch.

A process beside rank 0 serves it, so that answering the other ranks takes neither rank 0's
interpreter nor its core. It needs only the standard library, and ends with the process that started
it. Requests and answers are frames: length, number of the request, then byte strings, of which a
request's first names the operation.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import accumulate, pairwise

ANSWER_S = 120.0  # for answers that wait for no other rank
CONNECT_RETRY_S = 0.05  # between two attempts to connect
CONNECT_ATTEMPT_S = 5.0  # of one attempt, where nothing answers
HEAD = struct.Struct("!QQ")  # bytes that follow, number of the request
SET = b"set"
GET = b"get"
CHECK = b"check"
DELETE = b"delete"


def packed(parts: Sequence[bytes]) -> bytes:
    """Number of parts, their lengths (64 bits each), the parts."""
    return struct.pack(f"!{1 + len(parts)}Q", len(parts), *map(len, parts)) + b"".join(parts)


def unpacked(package: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("!Q", package)
    ends = list(accumulate(struct.unpack_from(f"!{count}Q", package, 8), initial=8 * (1 + count)))
    return [package[begin:end] for begin, end in pairwise(ends)]


class Frames:
    """Splits what a connection receives into frames, which may arrive in pieces."""

    def __init__(self) -> None:
        self._received = bytearray()

    def add(self, data: bytes) -> None:
        self._received += data

    def take(self) -> tuple[int, list[bytes]] | None:
        """The number and the parts of the next frame, once it is complete."""
        if len(self._received) < HEAD.size:
            return None
        length, number = HEAD.unpack_from(self._received)
        end = HEAD.size + length
        if len(self._received) < end:
            return None
        body = bytes(self._received[HEAD.size : end])
        del self._received[:end]
        return number, unpacked(body)


def frame(number: int, parts: Sequence[bytes]) -> bytes:
    body = packed(parts)
    return HEAD.pack(len(body), number) + body


def connected(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to a store, as soon as rank 0 has opened it. Raises RuntimeError if it does not
    in this time, and at once where no host can be reached."""
    until = time.monotonic() + timeout_s
    while True:
        left_s = max(CONNECT_RETRY_S, until - time.monotonic())
        try:
            opened = socket.create_connection((host, port), min(CONNECT_ATTEMPT_S, left_s))
            if opened.getsockname() != opened.getpeername():
                return opened
            # the kernel has given this end the port that nobody listens at yet
            opened.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except OSError as error:  # rank 0 may not have opened it yet
            is_local = host in ("127.0.0.1", "::1", "localhost")
            if is_local and error.errno in (errno.ENETUNREACH, errno.EADDRNOTAVAIL):
                raise RuntimeError(
                    f"no store at ({host}, {port}): {error}; the loopback interface is down: ip"
                    " link set lo up"
                ) from error
            if time.monotonic() > until:
                seen = f"no store at ({host}, {port}) within {timeout_s:g} s: {error}"
                raise RuntimeError(f"{seen}; {_start_advice(error)}") from error
        time.sleep(CONNECT_RETRY_S)


def _start_advice(error: OSError) -> str:
    """What to do where rank 0's store can't be reached."""
    if error.errno == errno.ECONNREFUSED:
        return "that host answers, but rank 0 has not started there: start it, or name its host"
    return "start rank 0, check that host for a firewall, or name another address of it"


class KeyValueStore:
    """A connection to the server, with those methods of torch's TCPStore that the control plane
    uses.

    Calls raise RuntimeError where the server is gone or a key is not set in time.
    """

    def __init__(
        self, host: str, port: int, timeout_s: float, server: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.host = host
        self.port = port
        self._timeout_s = timeout_s
        self._server = server
        self._number = 0
        self._frames = Frames()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None  # for __del__
        self._socket = connected(host, port, timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __del__(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.close()  # which ends it
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(1.0)

    def clone(self) -> KeyValueStore:
        """The same store over a connection of its own."""
        return KeyValueStore(self.host, self.port, ANSWER_S)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `get` and `multi_get` wait."""
        self._timeout_s = timeout.total_seconds()

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(SET, key.encode(), value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values, as soon as all keys are set."""
        return self._ask(GET, *_encoded(keys), timeout_s=self._timeout_s)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set."""
        return bool(self._ask(CHECK, *_encoded(keys)))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(DELETE, key.encode()))

    def _ask(self, *parts: bytes, timeout_s: float = ANSWER_S) -> list[bytes]:
        assert self._socket is not None
        with self._lock:
            self._number += 1
            until = time.monotonic() + timeout_s
            try:
                self._socket.settimeout(None)
                self._socket.sendall(frame(self._number, parts))
                while True:
                    answer = self._frames.take()
                    # an earlier one took too long
                    if answer is not None and answer[0] == self._number:
                        return answer[1]
                    if answer is None:
                        self._socket.settimeout(max(0.001, until - time.monotonic()))
                        data = self._socket.recv(1 << 20)
                        if not data:
                            raise ConnectionError("the store is gone")
                        self._frames.add(data)
            except TimeoutError as error:
                raise RuntimeError(f"no answer from the store in {timeout_s:g} s") from error
            except OSError as error:
                raise RuntimeError(str(error)) from error


def _encoded(keys: Sequence[str]) -> list[bytes]:
    return [key.encode() for key in keys]


def hosted_store(host: str, port: int, listening_fd: int) -> KeyValueStore:
    """Start the server on a socket that listens already, and connect to it."""
    command = [sys.executable, "-IS", __file__, str(listening_fd)]
    # a session of its own: rank 0 saves results after the signals that end its process group
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        pass_fds=[listening_fd], start_new_session=True,
    )  # fmt: skip
    os.close(listening_fd)
    return KeyValueStore(host, port, ANSWER_S, server)


# ---------------------------------------------------------------- the server


class _Connection:
    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.frames = Frames()
        self.unsent = bytearray()
        self.number = 0
        self.wanted = list[bytes]()
        self.missing = 0  # the newest request, and what it waits for


class _StoreServer:
    def __init__(self, listener: socket.socket, lifeline: int) -> None:
        self._listener = listener
        self._lifeline = lifeline
        self._selector = selectors.DefaultSelector()
        self._values: dict[bytes, bytes] = {}
        # by key: who waits for it, with which request
        self._waiting: dict[bytes, list[tuple[_Connection, int]]] = {}
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(lifeline, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the lifeline closes: rank 0 has ended."""
        while True:
            for key, events in self._selector.select():
                if key.fileobj == self._lifeline:
                    return
                if key.fileobj is self._listener:
                    with suppress(OSError):  # the client has left again
                        connected, _ = self._listener.accept()
                        connected.setblocking(False)
                        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        self._selector.register(
                            connected, selectors.EVENT_READ, _Connection(connected)
                        )
                elif events & selectors.EVENT_WRITE:
                    self._send(key.data, b"")
                else:
                    self._receive(key.data)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1 << 20)
            connection.frames.add(data)
            while (request := connection.frames.take()) is not None:
                self._answer(connection, *request)
        # not a request of ours, or a rank that is gone
        except (OSError, ValueError, IndexError, struct.error):
            data = b""
        if not data:
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _answer(self, connection: _Connection, number: int, request: list[bytes]) -> None:
        operation, *words = request
        connection.number = number
        if operation == GET:
            missing = [key for key in words if key not in self._values]
            connection.wanted = words
            connection.missing = len(missing)
            for key in missing:
                self._waiting.setdefault(key, []).append((connection, number))
            if not missing:
                self._send(connection, frame(number, [self._values[key] for key in words]))
            return
        answer = list[bytes]()
        if operation == SET:
            key, value = words
            self._values[key] = value
            self._wake(key)
        elif operation == CHECK:
            answer = [b"set"] if all(key in self._values for key in words) else []
        elif operation == DELETE:
            answer = [b"deleted"] if self._values.pop(words[0], None) is not None else []
        self._send(connection, frame(number, answer))

    def _wake(self, key: bytes) -> None:
        """Answer the connections whose last missing key this is, unless they have made another
        request since."""
        for connection, number in self._waiting.pop(key, ()):
            if connection.number == number:
                connection.missing -= 1
                if not connection.missing:
                    values = [self._values.get(wanted, b"") for wanted in connection.wanted]
                    self._send(connection, frame(number, values))

    def _send(self, connection: _Connection, data: bytes) -> None:
        """Send what the connection takes now, and the rest when it can: a stopped rank must not
        stop the others."""
        if connection.socket.fileno() < 0:
            return
        connection.unsent += data
        with suppress(OSError):  # full; one that is gone is seen by `_receive`
            while connection.unsent:
                del connection.unsent[: connection.socket.send(connection.unsent)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, events, connection)


if __name__ == "__main__":
    _StoreServer(socket.socket(fileno=int(sys.argv[1])), 0).serve()
