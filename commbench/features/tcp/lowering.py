"""The connections of a rank, and steps as calls on them.

A connection is made when a program names a peer, and kept for later cases.

A message is cut into one part per stream. Part i travels on connection i, after the parts of
earlier messages, so that messages need no header: the programs of both ends name the same messages
in the same order. Messages that are pending at a wait and go the same way over the same connection
are passed to the kernel in one sendmsg or recvmsg (each keeps its own memory; the wire carries the
same bytes). A blocking message alone is one system call per stream.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from commbench.backends.buffers.memory import HostBuffer, rotation_pool
from commbench.core.errors import Unsupported, WorldBroken
from commbench.core.program import (
    Barrier,
    Compute,
    Copy,
    In,
    Operation,
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.engines.compute import compute_call
from commbench.engines.lowered import NO_CALL, Call, Rotating
from commbench.hardware.network import socket_family

from .connection import (
    Connection,
    PendingTransfers,
    StreamTransfer,
    ThreadPool,
    io_vectors,
    tcp_info,
)
from .peer_listener import PeerListener, PeerStream, greet, set_buffers

BARRIER = -1  # the stream of the barriers' bytes
OPENED = -2  # and of connections that are made while the clock runs
MAX_STREAMS = 64
TCP_NO_COLLECTIVES = "tcp is point to point only: sockets have no collectives"
Messages = tuple[tuple[int, View], ...]  # peer, data


@dataclass(frozen=True)
class SocketOptions:
    """Socket options of all connections."""

    buffer_bytes: int | None
    no_delay: bool
    timeout_s: float


class Endpoint:
    """The connections of a rank, by world rank of the peer and stream.

    The lower rank of a pair connects, the higher one waits for its listener's thread: no order can
    deadlock.
    """

    def __init__(
        self,
        rank: int,
        listener: PeerListener,
        secret: bytes,
        addresses: Sequence[tuple[str, int]],
        options: SocketOptions,
    ) -> None:
        self.rank = rank
        self.listener = listener
        self.threads = ThreadPool()
        self._secret = secret
        self._addresses = addresses
        self._options = options
        self._connections: dict[PeerStream, Connection] = {}
        self.initial_cwnd: int | None = None  # segments, of a connection that has sent nothing
        listener.serve(secret, self._admit)

    def __getitem__(self, key: PeerStream) -> Connection:
        return self._connections[key]

    def disconnect(self, keys: Collection[PeerStream]) -> None:
        """Close these connections, if they were made. The peers must do so too."""
        for key in set(keys) & set(self._connections):
            self._connections.pop(key).close()

    def connect(self, keys: Collection[PeerStream]) -> None:
        """Make the connections that are missing or broken. The peers must do so too; raises
        WorldBroken."""
        timeout_s = self._options.timeout_s
        for key in set(keys) & set(self._connections):
            if not self._connections[key].alive():
                self._connections.pop(key).close()
        missing = sorted(set(keys) - set(self._connections))
        connected = dict[PeerStream, socket.socket]()
        try:
            for key in missing:
                if key[0] >= self.rank:
                    connected[key] = self._connect(*key)
            for key in missing:
                inward = (
                    self.listener.wait_for(key, timeout_s)
                    if key[0] <= self.rank
                    else connected[key]
                )
                if inward is None:
                    reason = f"rank {key[0]} did not connect to rank {self.rank}"
                    raise WorldBroken(f"{reason} within {timeout_s:g} s (backend.timeout_s)")
                outward = connected.pop(key, inward)
                self._connections[key] = Connection(key, outward, inward, timeout_s, self.abort)
        finally:
            for unused in connected.values():
                unused.close()

    def sample(self) -> socket.socket:
        """A socket with the settings of all: of a connection, or the listener's if there is
        none."""
        working = (
            connection.outward
            for connection in self._connections.values()
            if connection.cause is None
        )
        return next(working, self.listener.socket)

    def abort(self, cause: Exception) -> None:
        """A failed case leaves bytes in flight: the next one can use none of the open
        connections."""
        for connection in list(self._connections.values()):
            connection.abort(cause)

    def close(self) -> None:
        self.listener.close()
        self.abort(ConnectionAbortedError("closed here"))
        self.threads.close()
        for connection in self._connections.values():
            connection.close()

    def _connect(self, peer: int, stream: int) -> socket.socket:
        host, port = self._addresses[peer]
        connected = socket.socket(socket_family(host), socket.SOCK_STREAM)
        try:
            set_buffers(connected, self._options.buffer_bytes)
            self._set_no_delay(connected, stream)
            connected.settimeout(self._options.timeout_s)
            connected.connect((host, port))
            self.initial_cwnd = self.initial_cwnd or int(tcp_info(connected).get("cwnd", 0)) or None
            greet(connected, self._secret, self.rank, stream)
        except OSError as error:
            connected.close()
            reason = f"rank {self.rank} can't reach rank {peer} at {host} port {port}: {error}"
            raise WorldBroken(f"{reason}; {_port_advice(error)}") from error
        return connected

    def _admit(self, peer: int, stream: int, accepted: socket.socket) -> bool:
        if not (0 <= peer <= self.rank and OPENED <= stream < MAX_STREAMS):
            return False
        with suppress(OSError):  # if it has hung up, whoever uses the connection will notice
            self._set_no_delay(accepted, stream)
        return True

    def _set_no_delay(self, connection: socket.socket, stream: int) -> None:
        no_delay = self._options.no_delay or stream < 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(no_delay))


def _port_advice(error: OSError) -> str:
    """What to do where a connection can't be made."""
    if error.errno != errno.EADDRNOTAVAIL:
        return "check for a firewall, or choose another interface=NAME"
    ports = "net.ipv4.ip_local_port_range"
    return f"no local port is free: use fewer streams, or widen sysctl {ports}"


# ---------------------------------------------------------------- steps


def barrier_partners(rank: int, size: int) -> list[tuple[int, int]]:
    """Receiver and sender of a byte in each round (dissemination barrier; Hensgen, Finkel, Manber
    1988)."""
    distances = [1 << power for power in range((size - 1).bit_length())]
    return [((rank + distance) % size, (rank - distance) % size) for distance in distances]


class TcpLowering:
    """Lowers the steps of one program. A wait completes all messages that are started, so it has
    to name all of them."""

    def __init__(
        self,
        endpoint: Endpoint,
        ranks: Sequence[int],
        rank: int,
        streams: int,
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        self.endpoint = endpoint
        self.ranks = ranks
        self._rank = rank
        self._streams = streams
        self._buffers = buffers
        self._pool = rotation_pool(buffers)
        self._sends: list[tuple[int, View]] = []
        self._receives: list[tuple[int, View]] = []
        self._started: set[int] = set()  # the requests of these messages
        self._send_deferred = False
        self._waits: dict[tuple[Messages, Messages], Call] = {}

    def call(self, step: Step) -> Call:
        match step:
            case Start(operation, request):
                self._start(operation)
                self._started.add(request)
                return NO_CALL
            case Send(data, peer):
                self._sends.append((peer, data))
                # the peer may be sending too: complete both at the wait
                self._send_deferred = bool(self._receives)
                return NO_CALL if self._send_deferred else self._wait()
            case Recv() if self._started:
                raise Unsupported("tcp can't complete a Recv before the messages that are started")
            case Recv(data, peer):
                self._receives.append((peer, data))
                return self._wait()
            case WaitAll(requests):
                if set(requests) != self._started:
                    raise Unsupported("tcp completes all started messages in one WaitAll")
                self._started = set()
                return self._wait()
            case _ if self._send_deferred:
                raise Unsupported(
                    f"tcp can't lower a {type(step).__name__} between a send and the wait that it"
                    " needs"
                )
            case Barrier():
                pairs = barrier_partners(self._rank, len(self.ranks))
                rounds = [
                    tuple(self.endpoint[self.ranks[peer], BARRIER] for peer in pair)
                    for pair in pairs
                ]
                return Call(disseminate, (rounds, memoryview(bytearray(1)))) if rounds else NO_CALL
            case _ if isinstance(step, Compute):
                return compute_call(step)
            case Copy(source, target):
                return Call(
                    np.copyto, (self._rotating_elements(target), self._rotating_elements(source))
                )
            case _:
                raise Unsupported(TCP_NO_COLLECTIVES)

    def _start(self, operation: Operation | In) -> None:
        match operation:
            case Send(data, peer):
                self._sends.append((peer, data))
            case Recv(data, peer):
                self._receives.append((peer, data))
            case _:
                raise Unsupported(f"tcp can't start a {type(operation).__name__} without waiting")

    def _wait(self) -> Call:
        messages = tuple(self._sends), tuple(self._receives)
        self._sends = []
        self._receives = []
        self._send_deferred = False
        if messages not in self._waits:
            sends, receives = messages
            copies = [
                PendingTransfers(self._transfers(sends, copy), self._transfers(receives, copy))
                for copy in range(self._pool)
            ]
            self._waits[messages] = self._cheapest_call(copies)
        return self._waits[messages]

    def _cheapest_call(self, copies: list[PendingTransfers]) -> Call:
        """A single transfer needs neither a thread nor an order, and a single view no list.
        `copies` are all alike."""
        first = copies[0]
        transfers = (*first.sends, *first.receives)
        if not transfers:
            return NO_CALL
        if len(transfers) > 1:
            threads = self.endpoint.threads
            threads.reserve(0 if first.small else len(transfers) - 1)
            return Call(
                threads.move_small if first.small else threads.move, (Rotating(tuple(copies)),)
            )
        connection, vectors = transfers[0]
        by_copy = tuple((*pending.sends, *pending.receives)[0][1] for pending in copies)
        if len(vectors) == 1 and len(vectors[0].views) == 1:
            move_one: Callable[..., None] = (
                connection.send_one if first.sends else connection.receive_one
            )
            return Call(move_one, (Rotating(tuple(vector.views[0] for (vector,) in by_copy)),))
        return Call(connection.send if first.sends else connection.receive, (Rotating(by_copy),))

    def _transfers(self, messages: Messages, copy: int) -> tuple[StreamTransfer, ...]:
        """One per connection, its parts in the order of the messages."""
        views = dict[PeerStream, list[memoryview]]()
        for peer, data in messages:
            for stream, part in enumerate(
                cut(memoryview(self.elements(data, copy)).cast("B"), self._streams)
            ):
                if len(part):
                    views.setdefault((self.ranks[peer], stream), []).append(part)
        return tuple((self.endpoint[key], io_vectors(parts)) for key, parts in views.items())

    def elements(self, view: View, copy: int) -> Any:
        return self._buffers[view.buffer].words(view.slot, copy)[view.elements]

    def _rotating_elements(self, view: View) -> Rotating:
        return Rotating(tuple(self.elements(view, copy) for copy in range(self._pool)))


def cut(view: memoryview, parts: int) -> list[memoryview]:
    """Contiguous parts whose sizes differ by one byte at most; some are empty if there are fewer
    bytes than parts."""
    edges = [len(view) * index // parts for index in range(parts + 1)]
    return [view[start:stop] for start, stop in pairwise(edges)]


def disseminate(rounds: Iterable[Sequence[Connection]], byte: memoryview) -> None:
    """A barrier: in each round a byte to the first connection, then one from the second."""
    for receiver, sender in rounds:
        receiver.send_one(byte)
        sender.receive_one(byte)
