"""Messages by copies into a peer's memory, with counters in shared memory: posted, sent, arrived at
a barrier.

The receiver posts memory for a message; the sender copies into it, waits for the copy, and counts
it as sent. Messages between two ranks match by number: the n-th that one rank posts is the n-th
that the other sends. Each counter has one writer and a cache line of its own, and only grows. An
aligned 8-byte store is atomic, and the copy that it announces is complete on the GPU before, so no
memory order beyond that of x86 is needed.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from commbench.backends.buffers.memory import LINE_BYTES

from .memory import CopyingExporter

SHARED_MEMORY = Path("/dev/shm")
LINE_WORDS = LINE_BYTES // 8
SPINS_BEFORE_YIELD = 200


class Mailbox:
    """The counters of a node: `counters[index]`. `node_ranks` are the world ranks of the node."""

    def __init__(self, path: Path, node_ranks: Sequence[int]) -> None:
        self._position = {rank: position for position, rank in enumerate(node_ranks)}
        self._ranks = len(node_ranks)
        with path.open("r+b") as file:
            self._pages = mmap.mmap(file.fileno(), mailbox_bytes(self._ranks))
        self.counters = memoryview(self._pages).cast("q")

    def posted(self, source: int, target: int) -> int:
        """Index of the number of messages from the source that have memory at the target; the
        target writes it."""
        return LINE_WORDS * (self._position[source] * self._ranks + self._position[target])

    def sent(self, source: int, target: int) -> int:
        """Index of the number of messages that have been copied; the source writes it."""
        return self.posted(source, target) + LINE_WORDS * self._ranks**2

    def arrived(self, rank: int) -> int:
        """Index of the number of barriers that the rank has entered; the rank writes it."""
        return LINE_WORDS * (2 * self._ranks**2 + self._position[rank])

    def wait(self, index: int, value: int) -> None:
        """Wait until the counter has that value: spin, then yield the core between reads.

        It has no deadline: the control plane's heartbeat ends the world when a peer is lost.
        """
        counters = self.counters
        for _ in range(SPINS_BEFORE_YIELD):
            if counters[index] >= value:
                return
        while counters[index] < value:
            os.sched_yield()


def mailbox_bytes(ranks: int) -> int:
    return LINE_BYTES * (2 * ranks**2 + ranks)


def create_mailbox(ranks: int) -> Path:
    """A file with all counters zero, to be opened by all ranks and then unlinked. Raises
    OSError."""
    path = SHARED_MEMORY / f"commbench-ipc-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # without space, a later store would be a SIGBUS
        os.posix_fallocate(descriptor, 0, mailbox_bytes(ranks))
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
    return path


class Transfer(NamedTuple):
    """A copy, by addresses of this process."""

    target: int
    source: int
    size: int


class SendChannel:
    """Messages to one rank. `issued`, `enqueued` (on the stream) and `announced` count messages
    over all programs.

    `posted`, `sent`: indices of counters. `offset`: posted minus sent when the program was
    prepared, which is not zero after a program that failed.
    """

    def __init__(self, posted: int, sent: int, announced: int, offset: int) -> None:
        self.posted = posted
        self.sent = sent
        self.offset = offset
        self.issued = self.enqueued = self.announced = announced
        self.queue: deque[Transfer] = deque()


class ReceiveChannel:
    """Messages from one rank: `count` have been posted. `offset`: sent minus posted when the
    program was prepared."""

    def __init__(self, posted: int, sent: int, count: int, offset: int) -> None:
        self.posted = posted
        self.sent = sent
        self.count = count
        self.offset = offset


# with the number of newest messages of the channel that need not be complete
Sends = tuple[tuple[SendChannel, int], ...]
Receives = tuple[tuple[ReceiveChannel, int], ...]


class ProgressEngine:
    """One rank's messages in one program. Every wait makes progress on all sends that this rank has
    issued."""

    def __init__(
        self, exporter: CopyingExporter, mailbox: Mailbox, channels: Sequence[SendChannel]
    ) -> None:
        self._mailbox = mailbox
        self._counters = mailbox.counters
        self._channels = channels
        self._copy = exporter.copy
        self._synchronise = exporter.synchronise

    def send(self, channel: SendChannel, transfer: Transfer) -> None:
        """Blocking, where no other send is pending."""
        channel.issued = number = channel.issued + 1
        self._mailbox.wait(channel.posted, number + channel.offset)
        self._copy(*transfer)
        self._synchronise()
        channel.enqueued = channel.announced = number
        self._counters[channel.sent] = number

    def receive(self, channel: ReceiveChannel) -> None:
        """Blocking, where no send is pending."""
        channel.count = number = channel.count + 1
        self._counters[channel.posted] = number
        self._mailbox.wait(channel.sent, number + channel.offset)

    def isend(self, channel: SendChannel, transfer: Transfer) -> None:
        """Enqueued now if the receiver has posted memory, else during a wait."""
        channel.issued += 1
        channel.queue.append(transfer)
        self._enqueue(channel)

    def irecv(self, channel: ReceiveChannel) -> None:
        channel.count += 1
        self._counters[channel.posted] = channel.count

    def send_while_pending(self, channel: SendChannel, transfer: Transfer) -> None:
        """Blocking, after other sends that may be pending."""
        self.isend(channel, transfer)
        self.wait(((channel, 0),), ())

    def receive_while_pending(self, channel: ReceiveChannel) -> None:
        """Blocking, while sends may be pending."""
        self.irecv(channel)
        self.wait((), ((channel, 0),))

    def wait_receives(self, receives: Receives) -> None:
        """Wait until these are complete, where no send is pending."""
        for channel, newer in receives:
            self._mailbox.wait(channel.sent, channel.count + channel.offset - newer)

    def wait(self, sends: Sends, receives: Receives) -> None:
        """Wait until these are complete. Deadlocks only for an order of waits that would deadlock
        in MPI, too."""
        counters = self._counters
        while True:
            enqueued = [self._enqueue(channel) for channel in self._channels if channel.queue]
            if any(enqueued):
                continue
            complete = [
                channel for channel in self._channels if channel.enqueued > channel.announced
            ]
            if complete:
                self._synchronise()
            for channel in complete:
                channel.announced = channel.enqueued
                counters[channel.sent] = channel.announced
            if all(channel.announced >= channel.issued - newer for channel, newer in sends) and all(
                counters[channel.sent] >= channel.count + channel.offset - newer
                for channel, newer in receives
            ):
                return
            if not complete:
                os.sched_yield()

    def copy(self, transfer: Transfer) -> None:
        """Copy between this rank's own buffers, and wait for the copy."""
        self._copy(*transfer)
        self._synchronise()

    def _enqueue(self, channel: SendChannel) -> bool:
        """Enqueue the messages for which memory is posted; returns whether there were any."""
        limit = self._counters[channel.posted] - channel.offset
        before = channel.enqueued
        while channel.queue and channel.enqueued < limit:
            self._copy(*channel.queue.popleft())
            channel.enqueued += 1
        return channel.enqueued > before


class NodeBarrier:
    """The barrier of the ranks of one node: each counts its arrival and waits for the counters of
    all others."""

    def __init__(
        self, mailbox: Mailbox, index: int, count: int, others: Sequence[tuple[int, int]]
    ) -> None:
        """`index`, `count`: of this rank's counter. `others`: index of a counter, and its value
        minus `count`."""
        self._mailbox = mailbox
        self._index = index
        self._count = count
        self._others = others

    def wait(self) -> None:
        self._count += 1
        self._mailbox.counters[self._index] = self._count
        for index, offset in self._others:
            self._mailbox.wait(index, self._count + offset)
