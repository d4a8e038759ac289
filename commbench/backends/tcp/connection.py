"""One TCP connection to a peer: whole batches of memory in and out, with as few calls as possible."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from .batch import Batch, after, batches
from .tcp_info import INFO_BYTES, parse_info


class Connection:
    """Blocking, with the kernel's own timeouts: Python's would cost a poll before each call.

    To oneself it has two ends, `outward` and `inward`. Every failure is a ConnectionError or TimeoutError that names
    the peer; `failed` hears of it, and must abort all connections that may be left in the middle of a message.
    """

    def __init__(
        self,
        key: tuple[int, int],
        outward: socket.socket,
        inward: socket.socket,
        timeout_s: float,
        failed: Callable[[OSError], None],
    ) -> None:
        self.peer, self.stream = key
        self.cause: Exception | None = None  # why it is broken
        self._report = failed
        self._ends, self._timeout_s = {outward, inward}, timeout_s
        self.outward = outward
        for end in self._ends:
            _time_out(end, timeout_s)
        self._sendall, self._sendmsg = outward.sendall, outward.sendmsg
        self._recv_into, self._recvmsg_into = inward.recv_into, inward.recvmsg_into

    def send_one(self, view: memoryview) -> None:
        try:
            self._sendall(view)
        except OSError as error:
            raise self._failed(error) from error

    def receive_one(self, view: memoryview) -> None:
        try:
            got = self._recv_into(view, 0, socket.MSG_WAITALL)
        except OSError as error:
            raise self._failed(error) from error
        if got != len(view):
            self._receive_rest((view,), got)

    def send(self, parts: Sequence[Batch]) -> None:
        try:
            for part in parts:
                sent = self._sendmsg(part.views)
                if sent != part.size:  # interrupted, or slow for as long as the timeout
                    for view in after(part.views, sent):
                        self._sendall(view)
        except OSError as error:
            raise self._failed(error) from error

    def receive(self, parts: Sequence[Batch]) -> None:
        for part in parts:
            try:
                got = self._recvmsg_into(part.views, 0, socket.MSG_WAITALL)[0]
            except OSError as error:
                raise self._failed(error) from error
            if got != part.size:
                self._receive_rest(part.views, got)

    def offer(self, parts: Sequence[Batch]) -> tuple[Batch, ...]:
        """Send what fits into the kernel's buffer now; what is left."""
        for index, part in enumerate(parts):
            try:
                sent = self._sendmsg(part.views, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise self._failed(error) from error
            if sent != part.size:
                return batches(
                    [*after(part.views, sent), *(view for more in parts[index + 1 :] for view in more.views)]
                )
        return ()

    def info(self) -> dict[str, float]:
        """TCP_INFO of the sending end; empty for a connection that is closed."""
        try:
            return parse_info(self.outward.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES))
        except OSError:
            return {}

    def alive(self) -> bool:
        """Between two cases, when nothing may be under way."""
        if self.cause is not None:
            return False
        try:
            return all(end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) for end in self._ends)
        except BlockingIOError:
            return True
        except OSError:
            return False

    def abort(self, cause: Exception) -> None:
        """Wake whoever is inside a call on this connection, here and at the peer; the first cause stays."""
        self.cause = self.cause or cause
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def _receive_rest(self, views: Sequence[memoryview], got: int) -> None:
        """A call ended early: at the end of the stream, or after a timeout during which something came."""
        for view in after(views, got):
            at = 0
            while at < len(view):
                try:
                    more = self._recv_into(view[at:], 0, socket.MSG_WAITALL)
                except OSError as error:
                    raise self._failed(error) from error
                if more == 0:
                    raise self._failed(ConnectionResetError("it ended in the middle of a message"))
                at += more

    def _failed(self, error: OSError) -> OSError:
        """The same in words that name the peer; where another one's failure ended this call, that one."""
        if self.cause is None:
            name = f"rank {self.peer}, connection {self.stream}"
            if isinstance(error, BlockingIOError):
                self._report(TimeoutError(f"{name}: no byte moved for {self._timeout_s:g} s (backend.timeout_s)"))
            else:
                self._report(ConnectionError(f"{name}: {error.strerror or error}"))
        return cast(OSError, self.cause)


def _time_out(one: socket.socket, timeout_s: float) -> None:
    one.settimeout(None)
    seconds, rest = divmod(timeout_s, 1)
    value = struct.pack("@ll", int(seconds), int(rest * 1e6))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
