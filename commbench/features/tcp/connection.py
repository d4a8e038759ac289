"""TCP connections to peers: lists of memory views move in as few system calls as possible, over
several at once."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import cast

MAX_VIEWS = 1024  # UIO_MAXIOV, of one sendmsg
MAX_CALL_BYTES = 1 << 30  # a call moves less than 2 GiB (MAX_RW_COUNT)
INFO_BYTES = 512  # more than any kernel fills of struct tcp_info; it returns how much it wrote
UNKNOWN = 0xFFFFFFFF  # min_rtt before the first sample
SMALL_BYTES = 64 * 1024  # up to here, waking a thread takes longer than filling the kernel's buffer


@dataclass(frozen=True, eq=False)
class IoVector:
    """Memory that one system call moves, in order."""

    views: tuple[memoryview, ...]
    size_bytes: int


def io_vectors(views: Sequence[memoryview]) -> tuple[IoVector, ...]:
    """The views in portions of what one call may move; views of more than MAX_CALL_BYTES are
    cut."""
    portions: list[list[memoryview]] = [[]]
    room = MAX_CALL_BYTES
    for piece in (
        view[start : start + MAX_CALL_BYTES]
        for view in views
        for start in range(0, len(view), MAX_CALL_BYTES)
    ):
        if len(portions[-1]) == MAX_VIEWS or len(piece) > room:
            portions.append([])
            room = MAX_CALL_BYTES
        portions[-1].append(piece)
        room -= len(piece)
    return tuple(
        IoVector(tuple(portion), sum(map(len, portion))) for portion in portions if portion
    )


def remaining(views: Sequence[memoryview], done_bytes: int) -> Iterator[memoryview]:
    """The views without their first `done_bytes` bytes."""
    for view in views:
        if done_bytes < len(view):
            yield view[done_bytes:]
        done_bytes = max(0, done_bytes - len(view))


class Connection:
    """A blocking connection with timeouts in the kernel: Python's would cost a poll before each
    call.

    A connection to oneself has two ends, `outward` and `inward`. Every failure is a ConnectionError
    or TimeoutError that names the peer. It is passed to `on_failure`, which must abort all
    connections that may be left in the middle of a message.
    """

    def __init__(
        self,
        key: tuple[int, int],
        outward: socket.socket,
        inward: socket.socket,
        timeout_s: float,
        on_failure: Callable[[OSError], None],
    ) -> None:
        self.peer, self.stream = key
        self.cause: Exception | None = None  # why it is broken
        self.outward = outward
        self.inward = inward
        self._on_failure = on_failure
        self.timeout_s = timeout_s
        self._ends = {outward, inward}
        seconds, fraction = divmod(timeout_s, 1)
        timeval = struct.pack("@ll", int(seconds), int(fraction * 1e6))
        for end in self._ends:
            end.settimeout(None)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._sendall = outward.sendall
        self._sendmsg = outward.sendmsg
        self._recv_into = inward.recv_into
        self._recvmsg_into = inward.recvmsg_into

    def send_one(self, view: memoryview) -> None:
        try:
            self._sendall(view)
        except OSError as error:
            raise self.failed(error) from error

    def receive_one(self, view: memoryview) -> None:
        try:
            received = self._recv_into(view, 0, socket.MSG_WAITALL)
            if received != len(view):
                self._receive_rest((view,), received)
        except OSError as error:
            raise self.failed(error) from error

    def send(self, vectors: Sequence[IoVector]) -> None:
        try:
            for vector in vectors:
                sent = self._sendmsg(vector.views)
                if sent != vector.size_bytes:  # interrupted, or slow for as long as the timeout
                    for view in remaining(vector.views, sent):
                        self._sendall(view)
        except OSError as error:
            raise self.failed(error) from error

    def receive(self, vectors: Sequence[IoVector]) -> None:
        try:
            for vector in vectors:
                received = self._recvmsg_into(vector.views, 0, socket.MSG_WAITALL)[0]
                if received != vector.size_bytes:
                    self._receive_rest(vector.views, received)
        except OSError as error:
            raise self.failed(error) from error

    def send_nowait(self, vectors: Sequence[IoVector]) -> tuple[IoVector, ...]:
        """Send what fits into the kernel's buffer now; returns the rest."""
        for index, vector in enumerate(vectors):
            try:
                sent = self._sendmsg(vector.views, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise self.failed(error) from error
            if sent != vector.size_bytes:
                later = (view for rest in vectors[index + 1 :] for view in rest.views)
                return io_vectors([*remaining(vector.views, sent), *later])
        return ()

    def send_some(self, view: memoryview) -> int:
        """Send what fits into the kernel's buffer now; returns how many bytes that were."""
        try:
            return self.outward.send(view, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.failed(error) from error

    def receive_some(self, view: memoryview) -> int:
        """Receive what has come until now; returns how many bytes that were."""
        try:
            received = self._recv_into(view, 0, socket.MSG_DONTWAIT)
            if received == 0:
                raise ConnectionResetError("it ended in the middle of a stream")
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.failed(error) from error
        return received

    def info(self) -> dict[str, float]:
        """TCP_INFO of the sending end; empty for a closed connection."""
        return tcp_info(self.outward)

    def alive(self) -> bool:
        """Whether it can be used for the next case. Called between cases, when nothing may be in
        flight."""
        if self.cause is not None:
            return False
        try:
            return all(end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) for end in self._ends)
        except BlockingIOError:
            return True
        except OSError:
            return False

    def abort(self, cause: Exception) -> None:
        """Interrupt all calls on this connection, here and at the peer; the first cause is kept."""
        self.cause = self.cause or cause
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def _receive_rest(self, views: Sequence[memoryview], received: int) -> None:
        """Receive what is missing after a call that ended early: at the end of the stream, or at a
        timeout."""
        while rest := list(remaining(views, received)):
            more = self._recvmsg_into(rest, 0, socket.MSG_WAITALL)[0]
            if more == 0:
                raise ConnectionResetError("it ended in the middle of a message")
            received += more

    def failed(self, error: OSError) -> OSError:
        """The error with the name of the peer; if the failure of another connection ended this
        call, that failure."""
        if self.cause is None:
            name = f"rank {self.peer}, connection {self.stream}"
            if isinstance(error, BlockingIOError):
                self._on_failure(
                    TimeoutError(
                        f"{name}: no byte moved for {self.timeout_s:g} s (backend.timeout_s)"
                    )
                )
            else:
                self._on_failure(ConnectionError(f"{name}: {error.strerror or error}"))
        return cast(OSError, self.cause)


# numbers in struct tcp_info of Linux (include/uapi/linux/tcp.h): offset, format, and the factor to
# SI units; the struct has only ever grown at its end, so an offset holds for every kernel that has
# the field
INFO_FIELDS = {
    "mss": (16, "=I", 1.0),
    "rtt_s": (68, "=I", 1e-6),
    "cwnd": (80, "=I", 1.0),  # segments
    "retransmits": (100, "=I", 1.0),  # segments, since the connection was made
    "bytes_acked": (120, "=Q", 1.0),
    "bytes_received": (128, "=Q", 1.0),
    "min_rtt_s": (148, "=I", 1e-6),
    "delivery_bytes_per_s": (160, "=Q", 1.0),  # the kernel's newest estimate
    "busy_s": (168, "=Q", 1e-6),  # with data in flight, and of that:
    "receiver_limited_s": (176, "=Q", 1e-6),  # ... waiting for the receive window
    "buffer_limited_s": (184, "=Q", 1e-6),  # ... waiting for the send buffer
}


def tcp_info(connected: socket.socket) -> dict[str, float]:
    """The fields of INFO_FIELDS; empty for a closed connection."""
    try:
        return parse_info(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES))
    except OSError:
        return {}


def parse_info(raw: bytes) -> dict[str, float]:
    """The fields that lie within `raw`; the shorter struct of an older kernel gives fewer."""
    values = {}
    for name, (offset, kind, factor) in INFO_FIELDS.items():
        if offset + struct.calcsize(kind) <= len(raw):
            (value,) = struct.unpack_from(kind, raw, offset)
            if value != UNKNOWN:
                values[name] = value * factor
    return values


# what one connection moves in one direction
StreamTransfer = tuple[Connection, tuple[IoVector, ...]]
TransferJob = Callable[[], None]


@dataclass(frozen=True, eq=False)
class PendingTransfers:
    """All that one wait has to complete."""

    sends: tuple[StreamTransfer, ...]
    receives: tuple[StreamTransfer, ...]

    @property
    def small(self) -> bool:
        transfers = (*self.sends, *self.receives)
        return all(
            sum(vector.size_bytes for vector in vectors) <= SMALL_BYTES for _, vectors in transfers
        )


class ThreadPool:
    """Moves data over several connections at once, with a thread for each; the caller takes the
    last one itself.

    Threads are started as needed and kept for later cases. A failure of one never leaves another
    one waiting.
    """

    def __init__(self) -> None:
        self._queues: list[SimpleQueue[TransferJob | None]] = []
        self._threads: list[threading.Thread] = []
        self._finished: SimpleQueue[None] = SimpleQueue()

    def reserve(self, threads: int) -> None:
        """Start threads until there are so many."""
        while len(self._threads) < threads:
            queue: SimpleQueue[TransferJob | None] = SimpleQueue()
            name = f"commbench-tcp-{len(self._threads)}"
            self._queues.append(queue)
            self._threads.append(
                threading.Thread(target=self._work, args=(queue,), name=name, daemon=True)
            )
            self._threads[-1].start()

    def move_small(self, pending: PendingTransfers) -> None:
        """Move in the caller's thread if the kernel takes all sends at once: no order of receives
        can deadlock then."""
        started = [
            (connection, connection.send_nowait(vectors)) for connection, vectors in pending.sends
        ]
        unsent = tuple((connection, rest) for connection, rest in started if rest)
        if unsent:
            self.move(PendingTransfers(unsent, pending.receives))
            return
        for connection, vectors in pending.receives:
            connection.receive(vectors)

    def move(self, pending: PendingTransfers) -> None:
        """All transfers at once."""
        jobs = [partial(connection.send, vectors) for connection, vectors in pending.sends]
        jobs += [partial(connection.receive, vectors) for connection, vectors in pending.receives]
        self.run(jobs, [connection for connection, _ in (*pending.sends, *pending.receives)])

    def run(self, work: Sequence[TransferJob], connections: Sequence[Connection]) -> None:
        """All at once, on these connections; raises the first error after all have ended."""
        errors = list[Exception]()

        def caught(job: TransferJob) -> None:
            try:
                job()
            except Exception as error:
                errors.append(error)
                # the others would wait for their timeouts
                for connection in connections:
                    connection.abort(error)

        jobs = [partial(caught, job) for job in work]
        self.reserve(len(jobs) - 1)
        for queue, job in zip(self._queues, jobs[:-1], strict=False):
            queue.put(job)
        jobs[-1]()
        for _ in jobs[:-1]:
            self._finished.get()
        if errors:
            raise errors[0]

    def close(self) -> None:
        """The connections must have been aborted before."""
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, queue: SimpleQueue[TransferJob | None]) -> None:
        while (job := queue.get()) is not None:
            job()
            self._finished.put(None)
